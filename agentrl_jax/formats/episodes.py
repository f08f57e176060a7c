"""Recorded episodes as messages, with the tokens and numbers of every response."""

import dataclasses
import datetime
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.config import Config, alone
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.formats.dialogs import ended, message_format, read_dialog
from agentrl_jax.formats.messages import MessageFormat
from agentrl_jax.rollout.contexts import Context
from agentrl_jax.rollout.trajectory import TRUNCATIONS, hexadecimal
from agentrl_jax.runs.rollout_records import (
    Header,
    RolloutRecord,
    of_evaluation,
    outside,
    read_record,
    record_path,
    recorded_iterations,
)
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.setup import build_model
from agentrl_jax.setup.agents import context_of
from agentrl_jax.text.tokenizer import Tokenizer

_TOKEN_NUMBERS = {"learner_logprob": "learner_logprobs", "entropy": "entropies", "advantage": "advantages"}
"""Fields of a record with a number per sampled token, and their names in exported files."""

_REPORT_EVERY = 200
"""Episodes between two lines of progress."""


@dataclasses.dataclass(frozen=True)
class Turn:
    """One response of an episode, and what came before and after it."""

    message: str
    """The user message that the agent answers."""
    response: str
    """The response with its inserted opening, without the token that ended it; other special tokens by name."""
    prompt_token_ids: list[int]
    """The whole context that the response was sampled from, the inserted opening included; empty for a scripted
    policy, which reads and samples no tokens."""
    token_ids: list[int]
    """The sampled tokens, the one that ended the response included; empty for a scripted policy."""
    logprobs: list[float]
    """Log-probability of each sampled token in the rollout, nats."""
    token_numbers: dict[str, list[float] | list[bool]]
    """By name, a value for each sampled token: `trained`, `advantages`, `learner_logprobs` and `entropies` as in
    `RolloutRecord`; without those that are not finite."""
    ended: bool
    """The response ended by itself; otherwise it was cut at its maximum length, or its answer was complete."""
    extra: dict[str, Any]
    """reward, advantage (mean of the trained tokens, None without any), valid, format_error, actions (ids),
    state_hash (16 hexadecimal digits); with retries, attempt (from 0)."""


@dataclasses.dataclass(frozen=True)
class Episode:
    """One recorded episode."""

    row: int
    """Row of the record, from 0."""
    task: str
    group: int
    member: int
    system: str | None
    """The system message; None without one."""
    turns: tuple[Turn, ...]
    unanswered: str | None
    """The last observation of a truncated episode, which was not answered."""
    reward: float
    """The raw return, without penalties."""
    success: bool
    failed: bool
    """The environment raised an error or had no level; the episode is not trained on."""
    truncation: str | None
    """Why the episode was truncated, one of `TRUNCATIONS`; None where it was not."""
    extra: dict[str, Any]
    """advantage (mean of the trained tokens, None without any), level (row of the level pack or None), level_id (hash
    of the first state), format_errors, overflow (an observation was cut)."""


@dataclasses.dataclass(frozen=True)
class RecordedEpisodes:
    """The recorded episodes of an iteration."""

    run: str
    """Name of the run's folder."""
    config: Config
    record: RolloutRecord
    tokenizer: Tokenizer
    time: datetime.datetime
    """When it was recorded, UTC."""
    report: Callable[[str], None] = lambda line: None
    """Gets lines of progress while the episodes are iterated over."""

    @property
    def header(self) -> Header:
        """What the episodes have in common."""
        return self.record.header

    @property
    def model(self) -> str:
        """Name of the pretrained model, without its folder; of the run if it started from random weights; or of the
        scripted policy."""
        if self.scripted:
            assert self.header.evaluation is not None
            return f"scripted policy {self.header.evaluation.policy}"
        pretrained = self.config.model.pretrained
        local = Path(pretrained).is_absolute() or Path(pretrained).exists()
        return (Path(pretrained).name if local else pretrained) if pretrained else self.run

    @property
    def scripted(self) -> bool:
        """Whether a scripted policy has played, without tokens."""
        return _scripted(self.record)

    @property
    def temperature(self) -> float | None:
        """Of sampling; None for a scripted policy, and where tasks have different ones."""
        return None if self.scripted else self.header.temperature

    def temperature_of(self, episode: Episode) -> float | None:
        """The same of an episode."""
        several = dict(zip(self.header.tasks, self.header.temperatures))
        return several.get(episode.task, self.temperature)

    @property
    def context(self) -> Context:
        """What was read before each response."""
        return context_of(self.config)

    def __len__(self) -> int:
        return len(self.record.task)

    def __iter__(self) -> Iterator[Episode]:
        forms = [
            message_format(alone(self.config, task).prompt, self.tokenizer) for task in range(len(self.config.tasks))
        ]
        for row in range(len(self)):
            if row and row % _REPORT_EVERY == 0:
                self.report(f"{row} of {len(self)} episodes")
            yield _episode(self.record, row, self.tokenizer, forms[self.record.task[row]], self.context)


def read_episodes(
    run: str | os.PathLike[str], iteration: int | None = None, report: Callable[[str], None] = lambda line: None
) -> RecordedEpisodes:
    """Reads the recorded episodes of an iteration of a run, by default of the last one that was recorded.

    `report` gets lines of progress while the episodes are iterated over.

    Raises:
        UserError: the folder holds no run or no such record, or the record or the tokenizer cannot be used.
    """
    return _read(run, [_chosen(run, iteration)], report)[0]


def read_together(
    run: str | os.PathLike[str], iteration: int | None = None, report: Callable[[str], None] = lambda line: None
) -> list[RecordedEpisodes]:
    """As `read_episodes`, but without an iteration all records of an evaluation, in the order of their numbers.

    Raises:
        UserError: as `read_episodes`.
    """
    chosen = [_chosen(run, iteration)]
    return _read(run, recorded_iterations(run) if iteration is None and of_evaluation(run) else chosen, report)


def _chosen(run: str | os.PathLike[str], iteration: int | None) -> int:
    """The number of the record to read."""
    known = recorded_iterations(run)
    if not known:
        read_config(run)  # refuses what is no run
        raise UserError.at(run, "has no recorded rollouts; train with train.trajectories_every above 0 to record them")
    if iteration is not None and iteration not in known:
        some = ", ".join(map(str, known[-8:]))
        more = f"one of {len(known)}, the last of which are {some}" if len(known) > 8 else f"one of {some}"
        raise UserError.of("--iteration", iteration, f"which {run} has not recorded; expected {more}")
    return known[-1] if iteration is None else iteration


def _read(
    run: str | os.PathLike[str], iterations: Sequence[int], report: Callable[[str], None]
) -> list[RecordedEpisodes]:
    config = read_config(run)
    with refusals(str(run)):
        tokenizer = build_model.load_tokenizer(config.model, build_model.load_model(config.model, weights=False))
    found = []
    for iteration in iterations:
        path = record_path(run, iteration)
        record = read_record(path)
        if flaw := flaw_of(record, tokenizer.vocab_size):
            raise UserError.at(path, f"{flaw}; restore a copy, or train the run again", flaw)
        time = datetime.datetime.fromtimestamp(int(path.stat().st_mtime), datetime.UTC)
        found.append(RecordedEpisodes(Path(run).resolve().name, config, record, tokenizer, time, report))
    return found


def flaw_of(record: RolloutRecord, vocab_size: int) -> str:
    """Why the contents of a record cannot be read with a tokenizer; empty if they can."""
    for name in ("prompt", "observation", "tokens", "final_observation"):
        if flaw := outside(name, getattr(record, name), vocab_size - 1):
            return flaw
    sampled = np.arange(record.tokens.shape[2]) < record.length[..., None]
    logprob = record.logprob[sampled] if not _scripted(record) else np.zeros(0)
    for name, numbers in (("logprob", logprob), ("reward", record.reward)):
        if not np.isfinite(numbers).all():
            return f"{name} has values that are not finite"
    return ""


def _scripted(record: RolloutRecord) -> bool:
    return record.header.evaluation is not None and record.header.evaluation.policy is not None


def _episode(record: RolloutRecord, row: int, tokenizer: Tokenizer, form: MessageFormat, context: Context) -> Episode:
    """Row `row` of a record, whose messages joined as `context` says."""
    dialog = read_dialog(record, row, tokenizer, form, context)
    prompt = record.prompt[row, : record.prompt_length[row]].tolist()
    turns: list[Turn] = []
    earlier: list[list[int]] = []
    for t, (message, response) in enumerate(zip(dialog.messages, dialog.responses, strict=True)):
        read = record.observation[row, t, : record.observation_length[row, t]].tolist()
        tokens = record.tokens[row, t, : record.length[row, t]].tolist()
        first = context.first_read(t)
        seen = [token for part in (*earlier[first:], read) for token in part]
        # What follows the prompt directly is read without the tokens that join it to a response.
        seen = [*prompt, *seen[record.lead[row, first] :]]
        turns.append(_turn(record, row, t, message, response, seen, tokens, tokenizer))
        earlier.append([*read, *tokens])
    played = slice(int(record.num_turns[row]))
    return Episode(
        row=row,
        task=record.header.tasks[record.task[row]],
        group=int(record.group[row]),
        member=int(record.member[row]),
        system=dialog.system,
        turns=tuple(turns),
        unanswered=dialog.unanswered,
        reward=shortest(record.returns[row : row + 1])[0],
        success=bool(record.success[row].any()),
        failed=bool(record.failed[row].any()),
        truncation=TRUNCATIONS[record.truncation[row] - 1] if record.truncation[row] else None,
        extra={
            "advantage": _mean(record.advantage[row, played][record.trained[row, played]]),
            "level": int(record.level[row]) if record.level[row] >= 0 else None,
            "level_id": hexadecimal(record.state_hash[row, :1])[0] if turns else None,
            "format_errors": int(record.format_error[row, played].sum()),
            "overflow": bool(record.overflow[row]),
        },
    )


def _turn(
    record: RolloutRecord,
    row: int,
    t: int,
    message: str,
    response: str,
    context: list[int],
    tokens: list[int],
    tokenizer: Tokenizer,
) -> Turn:
    sampled = (row, t, slice(len(tokens)))
    numbers = {new: getattr(record, old)[sampled] for old, new in _TOKEN_NUMBERS.items()}
    trained, scripted = record.trained[sampled], _scripted(record)
    token_numbers: dict[str, list[float] | list[bool]] = {"trained": trained.tolist()}
    token_numbers |= {name: shortest(values) for name, values in numbers.items() if np.isfinite(values).all()}
    return Turn(
        message=message,
        response=response,
        prompt_token_ids=[] if scripted else context,
        token_ids=[] if scripted else tokens,
        logprobs=[] if scripted else shortest(record.logprob[sampled]),
        token_numbers={} if scripted else token_numbers,
        ended=ended(tokens, tokenizer),
        extra={
            "reward": shortest(record.reward[row, t : t + 1])[0],
            "advantage": _mean(record.advantage[sampled][trained]),
            "valid": bool(record.valid[row, t]),
            "format_error": int(record.format_error[row, t]),
            "actions": [int(action) for action in record.actions[row, t] if action >= 0],
            "state_hash": hexadecimal(record.state_hash[row, t : t + 1])[0],
            **({"attempt": int(record.attempt[row, t])} if record.attempt.any() else {}),
        },
    )


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean(dtype=np.float64)) if values.size and np.isfinite(values).all() else None


def shortest(values: np.ndarray) -> list[float]:
    """The shortest decimals that round to the same float32 values: 0.1, not 0.10000000149011612."""
    return values.astype(np.float32).astype(str).astype(np.float64).tolist()
