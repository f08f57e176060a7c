"""Boards of the episodes that API models have played in compiled environments.

The folder of an evaluation has replies and what was read before them, but no actions and states. So the replies are
played again on the levels that its settings name, and the boards are those of the record, see `scenes.run_scenes`. An
episode that goes differently then, because code or levels have changed, has none.
"""

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from agentrl_jax.environments.kinds import kind_of
from agentrl_jax.errors import UserError, shortened
from agentrl_jax.evaluate.api_models.level_record import ROWS, LevelRecorder, Replies, level_options
from agentrl_jax.rollout.trajectory import hexadecimal
from agentrl_jax.runs.rollout_records import RolloutRecord
from agentrl_jax.text.chat_template import Message
from agentrl_jax.viewer.imported import MAX_EPISODES, ImportedEpisode
from agentrl_jax.viewer.scenes import run_scenes
from envs_jax.registry import spec
from envs_jax.scenes import Scene

Note = Callable[[str], None]


def level_scenes(
    folder: Path, settings: Mapping[str, Any], episodes: Sequence[ImportedEpisode], note: Note
) -> Iterator[tuple[ImportedEpisode, list[Scene]]] | None:
    """Each episode with its scenes; None where there are none, as of services.

    A compiled environment in the style chat was played as a service. What stops boards is only noted.
    """
    env, attempts = settings.get("env"), settings.get("attempts", 1)
    kind = kind_of(str(env))
    if kind.has_items or kind.stored or settings.get("style") == "chat":
        return None
    try:
        if spec(str(env)).scene is None:
            return None
        # Only the first sample of an item has several attempts.
        recorders = [_recorder(json.dumps(settings), most) for most in (attempts, 1)]
    except Exception as error:  # settings of another version may hold anything
        note(f"{folder}: no boards: {shortened(error)}")
        return None
    return _drawn(folder, recorders, episodes, note)


@functools.lru_cache(maxsize=4)
def _recorder(settings: str, attempts: int) -> LevelRecorder:
    """It is kept, so that its program is compiled once for a page that follows an evaluation."""
    return LevelRecorder(level_options(json.loads(settings), attempts))


def _drawn(
    folder: Path, recorders: Sequence[LevelRecorder], episodes: Sequence[ImportedEpisode], note: Note
) -> Iterator[tuple[ImportedEpisode, list[Scene]]]:
    """Each episode with its scenes; the recorders are that of first samples and that of the others."""
    missing = 0
    for start in range(0, len(episodes), ROWS):
        chunk = episodes[start : start + ROWS]
        found: list[list[Scene]] = [[] for _ in chunk]
        for recorder in dict.fromkeys(recorders):
            rows = [row for row, episode in enumerate(chunk) if recorders[episode.metadata["sample"] != 1] is recorder]
            drawn = _scenes(folder, recorder, [chunk[row] for row in rows], note)
            for row, scenes in zip(rows, drawn):
                found[row] = scenes
        missing += found.count([])
        yield from zip(chunk, found)
    if missing:
        note(
            f"{folder}: {missing} of {len(episodes)} episodes have no boards: played again, they go differently; the "
            "code or the levels have changed since"
        )


def _scenes(
    folder: Path, recorder: LevelRecorder, episodes: Sequence[ImportedEpisode], note: Note
) -> list[list[Scene]]:
    if not episodes:
        return []
    record = recorder.record([_replies(episode) for episode in episodes])
    try:
        drawn = run_scenes(folder, recorder.config, record, note) or [[] for _ in episodes]
    except UserError as error:
        note(f"{folder}: no boards: {error}")
        return [[] for _ in episodes]
    same = [_same(recorder, record, row, episode) for row, episode in enumerate(episodes)]
    return [scenes if agrees else [] for scenes, agrees in zip(drawn, same)]


def _replies(episode: ImportedEpisode) -> Replies:
    """The replies, empty where one was not carried out."""
    item, sample = (cast(int, episode.metadata[name]) for name in ("item", "sample"))
    said = [message for message in episode.messages if message["role"] == "assistant"]
    texts = ["" if message.get("lost") else message["content"] for message in said]
    # A level is known by its number, of which a foreign folder could have any.
    return Replies(min(max(item, 0), MAX_EPISODES), sample - 1, texts)


def _same(recorder: LevelRecorder, record: RolloutRecord, row: int, episode: ImportedEpisode) -> bool:
    """Whether a row of the record is the episode: its level, what was read before each reply, and how it ended."""
    read: list[list[Message]] = [[]]
    for message in episode.messages:
        if message["role"] in ("system", "user"):
            read[-1].append((message["role"], message["content"]))
        elif message["role"] == "assistant":
            read.append([])
    level = hexadecimal(record.state_hash[row, :1])[0]
    solved = bool(record.success[row].any())
    known = episode.level in ("", level) and episode.success in (None, solved)
    return known and recorder.shown(record, row) == read[:-1]
