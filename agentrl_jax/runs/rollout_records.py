"""Recorded rollouts of a run: one file per recorded iteration, rollouts/ITERATION.npz.

They hold what was sampled and what the learner made of it, token by token, so that `agentrl view` and `agentrl export`
need neither a checkpoint nor a device. Boards are not stored: the actions and the keys of a run determine them.

The folder that `agentrl eval --record` writes has the same files: 000001.npz holds the greedy episodes, one per level,
000002.npz those of the first sample, 000003.npz those of the second. Their header has the part `evaluation`. For a
scripted policy, 000001.npz holds its first play of every level, 000002.npz the second. It samples no tokens: those of
its responses are only how a tokenizer writes their text, and all numbers that a policy gives to tokens are NaN.

Shapes: `R` recorded episodes, `T` turns, `P` prompt tokens, `O` tokens of an observation, `L` tokens of a response, `A`
actions of one turn.
"""

import contextlib
import dataclasses
import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float32, Int32, UInt32
from pydantic import ConfigDict, Field, TypeAdapter

from agentrl_jax.errors import BadValue, UserError, shortened
from agentrl_jax.io import atomic_write, rename_with_suffix
from agentrl_jax.rollout.envs.retry import ATTEMPT
from agentrl_jax.rollout.trajectory import TRUNCATIONS

ROLLOUTS = "rollouts"
"""Name of the folder in a run's folder."""

VERSION = 1
_LARGEST = 2**31
"""Bytes that the arrays of a file may have together when they are read."""

_STRICT = ConfigDict(strict=True, extra="forbid")
_Number = Annotated[int, Field(ge=0, lt=2**31)]
_Seed = Annotated[int, Field(ge=0, lt=2**32)]
_Positive = Annotated[int, Field(ge=1, lt=2**31)]
_Temperature = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Where the episodes of an evaluation come from. Nothing was trained on them: advantages are 0.

    Greedy episodes have log-probability 0, since their tokens are certain; their `learner_logprob` and `entropy` are
    those of temperature 1.
    """

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    sample: _Number | None
    """Number of the sample, from 0; None for the greedy episodes."""
    seed: _Seed
    """Seed of levels and sampling."""
    split: int
    """The split of the levels, a value of `envs_jax.splits.Split`; keys follow from seed and split."""
    run: str
    """The folder of the run, as it was given; empty for a scripted policy."""
    iteration: _Number
    """Iteration of the checkpoint; 0 for a scripted policy."""
    panel: str | None = None
    """Name of the panel; None for other levels."""
    panel_sha256: str | None = None
    """Digest of the panel."""
    policy: str | None = None
    """The scripted policy that played, such as "random" or "constant move forward"; None for the agent of a run."""
    attempts: _Positive = 1
    """Most attempts at a level in one conversation; the horizon is that of all of them."""

    @property
    def agent(self) -> str:
        """What was evaluated, in words: the folder of the run, or the scripted policy."""
        return self.run if self.policy is None else f"the scripted policy {self.policy}"


@dataclasses.dataclass(frozen=True)
class Header:
    """What the episodes of a file have in common."""

    __pydantic_config__: ClassVar[ConfigDict] = _STRICT

    step: _Number
    """The iteration's step in metrics.jsonl, which also counts chunks of imitation; of an evaluation, the step of the
    checkpoint."""
    iteration: _Positive
    """Number of the iteration, from 1, as in metrics.jsonl; of an evaluation, the number of the file."""
    roll_backs: _Number
    """Roll-backs before this iteration; the keys of a run depend on them."""
    tasks: tuple[str, ...]
    """Labels of the run's tasks."""
    group_size: _Positive
    """Episodes of a group; those of a group are contiguous in the rollout."""
    episodes: _Number
    """Episodes of the rollout, of which the first R are recorded."""
    horizon: _Positive
    """Most turns of an episode."""
    temperature: _Temperature | None
    """Of sampling; 1 for a scripted policy, which has none; None where tasks have different ones."""
    temperatures: tuple[_Temperature, ...] = ()
    """That of each task, where they have different ones."""
    evaluation: Evaluation | None = None
    """Set in the records of an evaluation, in which groups are levels and members are samples."""

    @property
    def label(self) -> str:
        """Which record of its folder this is: "iteration 3", or of an evaluation "greedy", "sample 1" or "play 1"."""
        if self.evaluation is None:
            return f"iteration {self.iteration}"
        if self.evaluation.policy is not None:
            return f"play {self.iteration}"
        return "greedy" if self.evaluation.sample is None else f"sample {self.evaluation.sample + 1}"


_HEADER = TypeAdapter(Header)


@dataclasses.dataclass(frozen=True)
class RolloutRecord:
    """The first R episodes of the rollout of an iteration."""

    header: Header
    task: Int32[np.ndarray, " R"]
    """Index in `header.tasks`."""
    group: Int32[np.ndarray, " R"]
    member: Int32[np.ndarray, " R"]
    level: Int32[np.ndarray, " R"]
    """Row of the task's level pack, or -1."""
    prompt: Int32[np.ndarray, "R P"]
    prompt_length: Int32[np.ndarray, " R"]
    observation: Int32[np.ndarray, "R T O"]
    observation_length: Int32[np.ndarray, "R T"]
    lead: Int32[np.ndarray, "R T"]
    """First tokens of the observation, which join it to a response; right after the prompt it is read without."""
    tokens: Int32[np.ndarray, "R T L"]
    """Sampled tokens of the responses."""
    length: Int32[np.ndarray, "R T"]
    """Tokens of each response."""
    logprob: Float32[np.ndarray, "R T L"]
    """Log-probability of each token in the rollout, nats."""
    learner_logprob: Float32[np.ndarray, "R T L"]
    """The same under the same parameters, by one parallel forward pass, as the learner computes it."""
    entropy: Float32[np.ndarray, "R T L"]
    """Entropy of the distribution each token was sampled from, nats, by the same pass."""
    advantage: Float32[np.ndarray, "R T L"]
    """As trained on; 0 for tokens that are not trained."""
    trained: Bool[np.ndarray, "R T L"]
    """The token was trained on: it was sampled, and no filter left its episode out."""
    actions: Int32[np.ndarray, "R T A"]
    """Executed primitive actions, padded with -1."""
    reward: Float32[np.ndarray, "R T"]
    """Sum of the primitive rewards, without penalties."""
    valid: Bool[np.ndarray, "R T"]
    """The response has at least one valid action."""
    format_error: Int32[np.ndarray, "R T"]
    state_hash: UInt32[np.ndarray, "R T 2"]
    """Hash of the state before the response."""
    terminated: Bool[np.ndarray, "R T"]
    success: Bool[np.ndarray, "R T"]
    failed: Bool[np.ndarray, "R T"]
    """The environment raised an error or had no level; the episode is not trained on."""
    num_turns: Int32[np.ndarray, " R"]
    truncation: Int32[np.ndarray, " R"]
    """1 + index in `rollout.trajectory.TRUNCATIONS`; 0 where the episode was not truncated."""
    overflow: Bool[np.ndarray, " R"]
    """An observation was cut."""
    final_observation: Int32[np.ndarray, "R O"]
    final_observation_length: Int32[np.ndarray, " R"]
    attempt: Int32[np.ndarray, "R T"]
    """Number of the attempt at the level that each turn is of, from 0; always 0 without retries."""

    @property
    def returns(self) -> Float32[np.ndarray, " R"]:
        """Raw return of each episode."""
        return self.reward.sum(axis=1, dtype=np.float32)

    @classmethod
    def of_trajectory(cls, header: Header, rows: Any, scores: Any, advantages: Any = None) -> "RolloutRecord":
        """The record of R episodes that were played; all leaves are NumPy arrays with R rows.

        Args:
            header: what they have in common.
            rows: `rollout.trajectory.Trajectory`.
            scores: `learner.recorded.RecordedScores`.
            advantages: `learner.recorded.RecordedAdvantages`; None if nothing was trained.
        """
        if advantages is None:
            shape = rows.response.tokens.shape
            advantage, trained = np.zeros(shape, np.float32), np.zeros(shape, bool)
        else:
            advantage, trained = advantages.advantage, advantages.trained
        return cls(
            header=header,
            learner_logprob=scores.logprob,
            entropy=scores.entropy,
            advantage=advantage,
            trained=trained,
            **sampled_fields(rows),
        )


def sampled_fields(rows: Any) -> dict[str, Any]:
    """The fields of a record that a rollout determines, by name, from a `Trajectory`; the others are the learner's."""
    return {
        **{name: getattr(rows.ids, name) for name in ("task", "group", "member", "level")},
        **{name: getattr(rows, name) for name in ("prompt", "prompt_length", "observation", "observation_length")},
        **{name: getattr(rows, name) for name in ("num_turns", "truncation", "overflow")},
        **{name: getattr(rows, name) for name in ("final_observation", "final_observation_length")},
        **{name: getattr(rows.response, name) for name in ("tokens", "length", "logprob")},
        **{name: getattr(rows.turn, name) for name in ("actions", "reward", "valid", "format_error", "state_hash")},
        **{name: getattr(rows.turn, name) for name in ("terminated", "success", "failed")},
        "lead": rows.join.lead,
        "attempt": rows.turn.info.get(ATTEMPT, np.zeros(rows.turn.reward.shape)).astype(np.int32),
    }


_NOT_OF_OLD = ("attempt", "lead")
"""Arrays that files of earlier versions lack, which are 0 there."""
_ARRAYS = tuple(field.name for field in dataclasses.fields(RolloutRecord) if field.name != "header")


def record_path(run: str | os.PathLike[str], iteration: int) -> Path:
    """The file of an iteration of a run."""
    return Path(run) / ROLLOUTS / f"{iteration:06d}.npz"


def recorded_iterations(run: str | os.PathLike[str]) -> list[int]:
    """The recorded iterations of a run, ascending; empty if it recorded none."""
    names = (file.stem for file in (Path(run) / ROLLOUTS).glob("*.npz"))
    return sorted(int(name) for name in names if name.isdecimal())


def write_record(run: str | os.PathLike[str], record: RolloutRecord) -> Path:
    """Writes the file of an iteration atomically, and returns its path."""
    path = record_path(run, record.header.iteration)
    path.parent.mkdir(exist_ok=True)
    header = json.dumps({"version": VERSION, **dataclasses.asdict(record.header)}).encode()
    arrays = {name: getattr(record, name) for name in _ARRAYS}
    with atomic_write(path, binary=True) as file:
        np.savez_compressed(file, header=np.frombuffer(header, np.uint8), **arrays)
    return path


def move_after(run: str | os.PathLike[str], step: int, aside: Path) -> list[str]:
    """Moves the files of iterations after a step, which will be played again, into the folder `aside`.

    Files that cannot be read are renamed to N.npz.damaged; returns a sentence about each.
    """
    said = []
    for iteration in recorded_iterations(run):
        path = record_path(run, iteration)
        try:
            later = read_record(path).header.step > step
        except UserError as error:
            said.append(f"{error}; renamed to {rename_with_suffix(path, 'damaged').name}")
        else:
            if later:
                (aside / ROLLOUTS).mkdir(parents=True, exist_ok=True)
                path.rename(aside / ROLLOUTS / path.name)
    return said


class RolloutWriter:
    """Writes the files of a run, which are looked at once: a file costs the same however many there are."""

    def __init__(self, run: str | os.PathLike[str]):
        """Starts with the files that the run has."""
        self._run = run
        paths = [record_path(run, iteration) for iteration in recorded_iterations(run)]
        self._sizes = {path: path.stat().st_size for path in paths}
        self._total = sum(self._sizes.values())

    def write(self, record: RolloutRecord, most_bytes: int) -> None:
        """Writes a file, and deletes the oldest ones until all have at most `most_bytes`; the newest one is kept."""
        path = write_record(self._run, record)
        self._total -= self._sizes.pop(path, 0)
        self._sizes[path] = path.stat().st_size
        self._total += self._sizes[path]
        while self._total > most_bytes and len(self._sizes) > 1:
            oldest = next(iter(self._sizes))
            oldest.unlink(missing_ok=True)
            self._total -= self._sizes.pop(oldest)


def read_record(path: str | os.PathLike[str]) -> RolloutRecord:
    """Reads a file that `write_record` wrote.

    Raises:
        UserError: the file is missing, damaged, too large, or of another version.
    """
    refused = f"{path}: is no rollout of a run of this version"
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > _LARGEST:
            raise UserError.at(
                path, f"has {size} bytes of arrays, expected at most {_LARGEST}; record fewer episodes", size
            )
        with np.load(path, allow_pickle=False) as file:
            stored = (name for name in ("header", *_ARRAYS) if name in file or name not in _NOT_OF_OLD)
            found: dict[str, Any] = {name: file[name] for name in stored}
        if others := [name for name, array in found.items() if not isinstance(array, np.ndarray)]:
            raise BadValue(f"{others[0]} is no array", key=others[0])
        found = {name: np.zeros_like(found["format_error"]) for name in _NOT_OF_OLD} | found
        header = json.loads(found.pop("header").tobytes())
        if header.pop("version") != VERSION:
            raise UserError(f"{refused} (version {VERSION}); record it again", key=path)
        record = RolloutRecord(_HEADER.validate_json(json.dumps(header)), **found)
    except FileNotFoundError as error:
        raise UserError.at(path, "no such file; train with train.trajectories_every above 0") from error
    except (
        # A damaged file can name any size, depth or method of compression.
        *(MemoryError, RuntimeError, zipfile.BadZipFile, zlib.error),
        *(OSError, KeyError, TypeError, ValueError, EOFError),
    ) as error:
        raise UserError(f"{refused} ({shortened(error)}); restore a copy, or train the run again", key=path) from error
    if flaw := _flaw(record, Path(path).stem):
        raise UserError(f"{refused} ({flaw}); restore a copy, or train the run again", key=path)
    return record


def of_evaluation(run: str | os.PathLike[str]) -> bool:
    """Whether the records of a folder are those of an evaluation; not so if the first one cannot be read."""
    for iteration in recorded_iterations(run)[:1]:
        with contextlib.suppress(UserError):
            return read_record(record_path(run, iteration)).header.evaluation is not None
    return False


def _flaw(record: RolloutRecord, file: str) -> str:
    """Why the parts do not belong together or into a file of this name; empty if they do."""
    if file.isdecimal() and int(file) != record.header.iteration:
        return f"it holds iteration {record.header.iteration}"
    sizes: dict[str, int] = {}
    for field in dataclasses.fields(RolloutRecord):
        if field.name == "header":
            continue
        annotation: Any = field.type
        array = getattr(record, field.name)
        names = annotation.dim_str.split()
        if array.dtype.name not in annotation.dtypes or array.ndim != len(names):
            return f"{field.name} is {array.dtype.name}{list(array.shape)}, expected {annotation.dim_str}"
        for name, size in zip(names, array.shape, strict=True):
            expected = int(name) if name.isdecimal() else sizes.setdefault(name, size)
            if size != expected:
                return f"{field.name} has {size} for {name}, expected {expected}"
    most = {
        "num_turns": record.reward.shape[1],
        "prompt_length": record.prompt.shape[1],
        "observation_length": record.observation.shape[2],
        "length": record.tokens.shape[2],
        "final_observation_length": record.final_observation.shape[1],
        "task": len(record.header.tasks) - 1,
        "truncation": len(TRUNCATIONS),
    }
    return next(filter(None, (outside(name, getattr(record, name), most[name]) for name in most)), "")


def outside(name: str, values: np.ndarray, most: int) -> str:
    """Says that values called `name` are not all from 0 to `most`; empty if they are."""
    if values.size and not 0 <= values.min() <= values.max() <= most:
        return f"{name} has values from {values.min()} to {values.max()}, expected 0 to {most}"
    return ""
