"""The recorded rollouts of a run as conversations."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentrl_jax.errors import UserError
from agentrl_jax.formats.episodes import Episode, RecordedEpisodes, Turn, read_episodes
from agentrl_jax.offline.conversations import Conversation, Data, Message
from agentrl_jax.runs.rollout_records import ROLLOUTS, recorded_iterations
from agentrl_jax.text.automaton import CLOSING

FAILED = "the environment failed"
NO_REPLY = "no reply"
"""Why episodes are left out."""
CUT_REPLY = "reply cut at its limit, not trained"
"""Counted besides: replies that are part of a conversation, whose end the agent has not sampled."""


def is_run(folder: Path) -> bool:
    """Whether a folder is that of a run or of a recorded evaluation."""
    return (folder / "config.yaml").is_file() or (folder / ROLLOUTS).is_dir()


def read_run(path: Path, split: str = "") -> Data:
    """The conversations of all recorded iterations of a run; the split `iteration-N` is one of them.

    Raises:
        UserError: it is no run, nothing or no such iteration was recorded, or a record cannot be read.
    """
    named = re.fullmatch(r"iteration-(\d{1,9})", split, re.ASCII)
    if split and not named:
        raise UserError.of("split", split, f"of the run {path}; expected an iteration, such as iteration-40, or none")
    rows: list[Conversation] = []
    dropped: Counter[str] = Counter()
    for episode, source in episodes_of(path, int(named[1]) if named else None):
        made = conversations_of(episode, source)
        rows += made
        cut = 0 if episode.failed else sum(map(is_cut, episode.turns))
        dropped[CUT_REPLY] += cut
        if not made and not cut:
            dropped[FAILED if episode.failed else NO_REPLY] += 1
    if not rows:
        raise UserError.at(path, "has no recorded episode with a reply; train with train.trajectories_every above 0")
    return Data.of(rows, path.resolve().name + (f" {split}" if split else ""), +dropped)


def episodes_of(path: Path, iteration: int | None = None) -> Iterator[tuple[Episode, RecordedEpisodes]]:
    """The recorded episodes of an iteration of a run, or of all of them, each with its record."""
    numbers: Sequence[int | None] = [iteration] if iteration is not None else recorded_iterations(path)
    for number in numbers or [None]:  # None is refused if there is no record
        source = read_episodes(path, number)
        for episode in source:
            yield episode, source


def conversations_of(episode: Episode, source: RecordedEpisodes) -> list[Conversation]:
    """What can be learned from an episode: nothing where the environment failed or nothing was said.

    If the agent has read the whole episode before each response, that is one conversation, whose last message is the
    observation that was not answered, if there is one. With another agent, such as `window`, it is one for each
    response, with the turns that were read, and only the response is trained on.
    """
    if episode.failed or not episode.turns:
        return []
    count, cut = len(episode.turns), [is_cut(turn) for turn in episode.turns]
    if source.context.bounds(source.header.horizon).never_restarts:
        return [] if all(cut) else [_conversation(episode, source, 0, count, trained=0)]
    first, turns = source.context.first_read, [turn for turn in range(count) if not cut[turn]]
    return [_conversation(episode, source, first(turn), turn + 1, trained=turn) for turn in turns]


def is_cut(turn: Turn) -> bool:
    """Whether a response was cut at its maximum length: it has neither an end nor a complete answer.

    Nobody has sampled an end there, which learning from it would train.
    """
    return bool(turn.token_ids) and not turn.ended and not turn.response.rstrip().endswith(CLOSING.decode())


def _conversation(episode: Episode, source: RecordedEpisodes, first: int, end: int, *, trained: int) -> Conversation:
    """Turns `first` to `end` - 1, of which those from `trained` on are trained on."""
    messages = [] if episode.system is None else [Message("system", episode.system)]
    for number in range(first, end):
        turn = episode.turns[number]
        learned = number >= trained and not is_cut(turn)
        messages += [Message("user", turn.message), Message("assistant", turn.response, learned)]
    if episode.unanswered is not None and end == len(episode.turns):
        messages.append(Message("user", episode.unanswered))
    return Conversation(
        tuple(messages),
        episode.task,
        episode.extra["level_id"],
        episode.reward,
        episode.success,
        f"{source.run}/{ROLLOUTS}/{source.header.iteration:06d}.npz: row {episode.row}",
    )
