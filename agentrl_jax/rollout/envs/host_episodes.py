"""Episodes of host environments, in plain Python and NumPy, called by the callbacks of `rollout.envs.host`.

Nothing here calls JAX: the device waits for this code, so a JAX computation could deadlock. Shapes: `B` rows, `O`
tokens of an observation, `A` actions of one turn.
"""

import dataclasses
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from agentrl_jax.errors import MAX_FOREIGN, shortened
from agentrl_jax.rollout.envs.host_environment import HostEnvironment, HostStep, HostTask
from agentrl_jax.rollout.envs.side_by_side import run_all
from agentrl_jax.rollout.trajectory import TurnResult, unplayed
from agentrl_jax.text.grammar import PlainResponse, ResponseGrammar
from agentrl_jax.text.reference import HostResponse, parse_response
from agentrl_jax.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_LARGEST = float(np.finfo(np.float32).max)


class Failure(NamedTuple):
    """An environment that failed; its episode is not trained on.

    Attributes:
        task: name of the task.
        group: number of the group.
        member: number within the group.
        what: "reset" or "step".
        error: the error message.
    """

    task: str
    group: int
    member: int
    what: str
    error: str


@dataclasses.dataclass
class Report:
    """Counters of `HostEpisodes` since the last report.

    Attributes:
        calls: callbacks answered.
        seconds: time that programs waited for them; calls of several devices may overlap.
        failures: environments that failed.
    """

    calls: int = 0
    seconds: float = 0.0
    failures: list[Failure] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Episode:
    env: HostEnvironment
    seen: str
    tokens: Sequence[int]
    """All tokens of `seen`, not cut."""


Identity = tuple[int, ...]
"""Data of the rollout's key, then task, group and member: identifies an episode."""


class HostEpisodes:
    """Holds the episodes of all rollouts and steps them in batches. Thread-safe."""

    def __init__(self, tasks: tuple[HostTask, ...], tokenizer: Tokenizer, *, deadline: float, workers: int):
        """Creates an empty store; arguments as in `agentrl_jax.rollout.envs.host.HostEnv`."""
        self._tasks = tasks
        self._tokenizer = tokenizer
        self._deadline = deadline
        self._workers = workers
        self._width = max(task.observation_tokens for task in tasks)
        self._max_actions = tasks[0].grammar.max_actions
        self._info_keys = tuple(sorted({name for task in tasks for name in task.info_keys}))
        self._episodes: dict[Identity, _Episode] = {}
        self._report = Report()
        self._lock = threading.Lock()

    def take_report(self) -> Report:
        """Returns the report since the last call, and starts a new one."""
        with self._lock:
            report, self._report = self._report, Report()
        return report

    def clear(self) -> None:
        """Drops all running episodes. Call it between rollouts, which may end episodes without a last step."""
        with self._lock:
            names = list(self._episodes)
        for name in names:
            self._forget(name)

    @property
    def info_keys(self) -> tuple[str, ...]:
        """Names of the numeric environment information of all tasks."""
        return self._info_keys

    @property
    def live(self) -> int:
        """Number of running episodes."""
        with self._lock:
            return len(self._episodes)

    def reset(self, identity: Any, seed: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
        """Starts episodes.

        An environment that fails here has an empty first observation, and its first turn fails.

        Args:
            identity: i32[B, I] rows of `Identity`.
            seed: u32[B].
            mask: bool[B] rows to start.

        Returns:
            i32[B, O] tokens of the observations, padded with -1; bool[B] whether they were cut.
        """
        began = time.monotonic()
        names, seeds = _identities(identity), np.asarray(seed).tolist()
        rows = np.flatnonzero(np.asarray(mask)).tolist()
        for row in rows:  # episodes left by an aborted rollout with the same key
            self._forget(names[row])
        opened: dict[Identity, _Episode] = {}
        late = threading.Event()
        outcomes = run_all(
            [partial(self._start, names[row], seeds[row], opened, late) for row in rows], self._deadline, self._workers
        )
        with self._lock:
            late.set()
        shown: dict[Identity, _Episode] = {}  # by group: the first member that started
        answers: dict[int, Sequence[int]] = {}
        for row, outcome in zip(rows, outcomes):
            group = names[row][:-1]
            outcome = opened.get(names[row], outcome)  # it may have started after the deadline
            if isinstance(outcome, BaseException):
                self._failed(names[row], "reset", outcome)
                continue
            first = shown.setdefault(group, outcome)
            if outcome.seen != first.seen:
                error = ValueError(
                    f"first observation {outcome.seen!r}; expected its group's {first.seen!r} from equal seeds"
                )
                outcome.env.close()
                self._failed(names[row], "reset", error)
                continue
            with self._lock:
                self._episodes[names[row]] = outcome
        for row in rows:
            group = names[row][:-1]
            answers[row] = shown[group].tokens if group in shown else ()
        self._answered(began)
        return self._tokens(len(names), names, answers)

    def step(
        self, identity: Any, turn: Any, used: Any, horizon: Any, max_actions: Any, tokens: Any, length: Any, mask: Any
    ) -> tuple[TurnResult, np.ndarray, np.ndarray]:
        """Executes responses; drops the episodes that end.

        Args:
            identity: i32[B, I] rows of `Identity`.
            turn: i32[B] turns answered so far.
            used: i32[B] actions executed so far.
            horizon: i32[] turns of an episode.
            max_actions: i32[] actions of an episode.
            tokens: i32[B, L] responses.
            length: i32[B].
            mask: bool[B] rows to answer.

        Returns:
            `TurnResult` of B turns, NumPy; the next observations as in `reset`.
        """
        began = time.monotonic()
        names, turns, spent = _identities(identity), np.asarray(turn).tolist(), np.asarray(used).tolist()
        responses, lengths = np.asarray(tokens).tolist(), np.asarray(length).tolist()
        last, budget = int(np.asarray(horizon)), int(np.asarray(max_actions))
        rows = np.flatnonzero(np.asarray(mask)).tolist()
        with self._lock:
            episodes = {row: self._episodes.get(names[row]) for row in rows}
        present = {row: episode for row, episode in episodes.items() if episode is not None}
        parsed: dict[int, HostResponse] = {}
        jobs: list[Callable[[], tuple[HostStep, Sequence[int]]]] = []
        for row, episode in present.items():
            task = self._tasks[_task(names[row])]
            data = self._tokenizer.decode_bytes(responses[row][: lengths[row]])
            parsed[row] = _understand(data, task.grammar)
            jobs.append(partial(self._step, episode, data, task, parsed[row], budget - spent[row]))
        outcomes = dict(zip(present, run_all(jobs, self._deadline, self._workers)))

        result = unplayed(len(names), self._max_actions, self._info_keys, np)
        answers: dict[int, Sequence[int]] = {}
        for row in rows:
            outcome = outcomes.get(row)
            if outcome is None or isinstance(outcome, BaseException):
                result.failed[row] = True
                if outcome is not None:
                    self._failed(names[row], "step", outcome)
                self._forget(names[row])
                continue
            step, answers[row] = outcome
            episode, response = present[row], parsed[row]
            done = min(response.num_valid, budget - spent[row])
            result.actions[row, :done] = response.actions[:done]
            result.reward[row] = step.reward
            result.valid[row] = response.num_valid > 0 and step.valid
            result.format_error[row] = (
                response.num_valid != response.num_parsed or response.num_valid == 0 or not step.valid
            )
            result.state_hash[row] = _text_hash(episode.seen)
            result.terminated[row] = step.terminated
            result.truncated[row] = not step.terminated and (step.truncated or spent[row] + done >= budget)
            result.success[row] = step.success
            for name, value in step.info.items():
                result.info[name][row] = value
            episode.seen = step.observation
            if result.terminated[row] or result.truncated[row] or turns[row] + 1 >= last:
                self._forget(names[row])
        self._answered(began)
        return result, *self._tokens(len(names), names, answers)

    def _start(self, name: Identity, seed: int, opened: dict[Identity, _Episode], late: threading.Event) -> _Episode:
        env = self._tasks[_task(name)].make()
        try:
            text = env.reset(seed)
            if not isinstance(text, str):
                raise TypeError(f"reset returned {type(text).__name__}; expected text")
            episode = _Episode(env, text, self._tokenizer.encode(text))
            with self._lock:
                if late.is_set():
                    raise TimeoutError("nobody waits for this environment any more")
                opened[name] = episode
            return episode
        except BaseException:
            env.close()
            raise

    def _step(
        self, episode: _Episode, data: bytes, task: HostTask, response: HostResponse, budget: int
    ) -> tuple[HostStep, Sequence[int]]:
        step = _checked_step(episode, data, task, response, budget)
        return step, self._tokenizer.encode(step.observation)

    def _forget(self, name: Identity) -> None:
        with self._lock:
            episode = self._episodes.pop(name, None)
        if episode is not None:
            episode.env.close()

    def _answered(self, began: float) -> None:
        with self._lock:
            self._report.calls += 1
            self._report.seconds += time.monotonic() - began

    def _failed(self, name: Identity, what: str, error: BaseException) -> None:
        *_, task, group, member = name
        failure = Failure(
            self._tasks[task].name, group, member, what, shortened(f"{type(error).__name__}: {error}", MAX_FOREIGN)
        )
        _log.warning("host environment %s, group %d, member %d failed in %s: %s", *failure)
        with self._lock:
            self._report.failures.append(failure)

    def _tokens(
        self, rows: int, names: Sequence[Identity], answers: Mapping[int, Sequence[int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        tokens, overflow = np.full((rows, self._width), -1, np.int32), np.zeros(rows, bool)
        for row, ids in answers.items():
            limit = self._tasks[_task(names[row])].observation_tokens
            tokens[row, : min(len(ids), limit)] = ids[:limit]
            overflow[row] = len(ids) > limit
        return tokens, overflow


def _understand(data: bytes, grammar: ResponseGrammar | PlainResponse) -> HostResponse:
    response = parse_response(data, grammar)
    return response if grammar.actions else dataclasses.replace(response, actions=(0,) * response.num_parsed)


def _checked_step(episode: _Episode, data: bytes, task: HostTask, response: HostResponse, budget: int) -> HostStep:
    known = (
        [task.grammar.actions[action] for action in response.actions] if task.grammar.actions else list(response.items)
    )
    step = episode.env.step(task.grammar.forced_text + data.decode("utf-8", "replace"), known[:budget])
    if not isinstance(step, HostStep) or not isinstance(step.observation, str):
        raise TypeError(f"step returned {step!r}; expected a HostStep whose observation is text")
    unknown = set(step.info) - set(task.info_keys)
    if unknown:
        raise ValueError(
            f"info {', '.join(sorted(unknown))}; expected names out of the task's info_keys; add them there"
        )
    for name, value in (("reward", step.reward), *step.info.items()):
        if not abs(value) <= _LARGEST:
            raise ValueError(f"{name} is {value}; expected a finite number that float32 holds")
    return step


def _identities(rows: Any) -> list[Identity]:
    return [tuple(row) for row in np.asarray(rows).tolist()]


def _task(name: Identity) -> int:
    return name[-3]


def _text_hash(text: str) -> np.ndarray:
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.frombuffer(digest, "<u4")
