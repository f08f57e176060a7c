"""Episodes of host environments, in plain Python and NumPy, called by the callbacks of `rollout.envs.host`.

Nothing here calls JAX: the device waits for this code, so a JAX computation could deadlock. Shapes: `B` rows, `O`
tokens of an observation, `L` tokens of a response.
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

from agentrl_jax.environments import HostEnvironment, HostStep
from agentrl_jax.errors import MAX_FOREIGN, BadValue, shortened
from agentrl_jax.rollout.envs.concurrency import run_all
from agentrl_jax.rollout.envs.host_environment import HostTask
from agentrl_jax.rollout.envs.host_retry import check_same_start, retry_observation
from agentrl_jax.rollout.trajectory import TurnResult, unplayed
from agentrl_jax.text.reference import HostResponse, parse_response
from agentrl_jax.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

_LARGEST = float(np.finfo(np.float32).max)


class Failure(NamedTuple):
    """An environment that failed in `what`, "reset" or "step"; its episode is not trained on."""

    task: str
    group: int
    member: int
    what: str
    error: str


@dataclasses.dataclass
class Report:
    """Counters of `HostEpisodes` since the last report."""

    calls: int = 0
    """Callbacks answered."""
    seconds: float = 0.0
    """Time that programs waited for them; calls of several devices may overlap."""
    failures: list[Failure] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class _Episode:
    env: HostEnvironment
    seed: int
    first: str
    """The first observation."""
    tokens: Sequence[int]
    """All its tokens, not cut."""
    observation: str
    """The last one."""
    content: str
    """What the level is about, in the first turn of a task that says it; empty otherwise."""


Identity = tuple[int, ...]
"""Data of the rollout's key, then task, group and member: identifies an episode."""


class HostEpisodes:
    """Holds the episodes of all rollouts and steps them in batches. Thread-safe."""

    def __init__(
        self,
        tasks: tuple[HostTask, ...],
        tokenizer: Tokenizer,
        *,
        deadline: float,
        workers: int,
        restarts: bool = False,
    ):
        """Creates an empty store; arguments as in `agentrl_jax.rollout.envs.host.HostEnv`."""
        self.info_keys = tuple(sorted({name for task in tasks for name in task.info_keys}))
        self._tasks = tasks
        self._tokenizer = tokenizer
        self._deadline = deadline
        self._workers = workers
        self._episodes: dict[Identity, _Episode] = {}
        self._ended: dict[Identity, _Episode] | None = {} if restarts else None
        """Episodes that are over, without their environments; None where nothing begins again."""
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
            identities = [*self._episodes, *(self._ended or ())]
        for identity in identities:
            self._drop(identity)

    def reset(self, identity: Any, seed: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
        """Starts the episodes of the rows in `mask` bool[B], from `identity` i32[B, I] and `seed` u32[B].

        An environment that fails here has an empty first observation, and its first turn fails. Returns the tokens of
        the observations i32[B, O], padded with -1, and whether they were cut, bool[B].
        """
        began = time.monotonic()
        identities, seeds = _identities(identity), np.asarray(seed).tolist()
        rows = np.flatnonzero(np.asarray(mask)).tolist()
        for row in rows:  # episodes left by an aborted rollout with the same key
            self._drop(identities[row])
        first: dict[Identity, _Episode] = {}  # by group: the first member that started

        def check(row: int, episode: _Episode) -> None:
            expected = first.setdefault(identities[row][:-1], episode).first
            if episode.first != expected:
                why = f"expected its group's {expected!r} from equal seeds"
                raise BadValue.of("first observation", episode.first, why)

        self._begin(identities, {row: seeds[row] for row in rows}, check)
        observations = {row: first[group].tokens for row in rows if (group := identities[row][:-1]) in first}
        self._count_call(began)
        return self._padded(identities, observations)

    def restart(self, identity: Any, mask: Any) -> tuple[np.ndarray, np.ndarray]:
        """Begins episodes of the rows in `mask`, which are over, again with their seeds; returns as `reset` does.

        What is observed is the last observation, the feedback and the first one. An environment that fails here, or
        does not begin as before, has an empty observation, and its next turn fails.
        """
        began = time.monotonic()
        identities, ended = _identities(identity), self._ended
        assert ended is not None, "made without restarts"
        with self._lock:
            over = {
                row: ended.pop(identities[row])
                for row in np.flatnonzero(np.asarray(mask)).tolist()
                if identities[row] in ended
            }
        begun = self._begin(
            identities,
            {row: episode.seed for row, episode in over.items()},
            lambda row, episode: check_same_start(over[row].first, episode.first),
        )
        observations = {
            row: self._tokenizer.encode(retry_observation(over[row].observation, episode.first))
            for row, episode in begun.items()
        }
        self._count_call(began)
        return self._padded(identities, observations)

    def step(
        self, identity: Any, turn: Any, used: Any, horizon: Any, max_actions: Any, tokens: Any, length: Any, mask: Any
    ) -> tuple[TurnResult, np.ndarray, np.ndarray]:
        """Executes the responses of the rows in `mask` bool[B]; drops the episodes that end.

        `turn` and `used`, i32[B], count the finished turns and the executed actions of each episode, `horizon` and
        `max_actions` limit them. The responses are `tokens` i32[B, L] up to `length` i32[B]. Returns the results in
        NumPy, and the next observations as `reset` does.
        """
        began = time.monotonic()
        identities, turns, spent = _identities(identity), np.asarray(turn).tolist(), np.asarray(used).tolist()
        responses, lengths = np.asarray(tokens).tolist(), np.asarray(length).tolist()
        last, budget = np.broadcast_to(np.asarray(horizon), len(turns)).tolist(), int(np.asarray(max_actions))
        rows = np.flatnonzero(np.asarray(mask)).tolist()
        with self._lock:
            episodes = {row: self._episodes[identities[row]] for row in rows if identities[row] in self._episodes}
        parsed: dict[int, HostResponse] = {}
        jobs = []
        for row, episode in episodes.items():
            task = self._task(identities[row])
            data = self._tokenizer.decode_bytes(responses[row][: lengths[row]])
            response = parse_response(data, task.response_format)
            if not task.response_format.actions:  # free text: every item is action 0
                response = dataclasses.replace(response, actions=(0,) * response.num_parsed)
            parsed[row] = response
            jobs.append(partial(self._step, episode, data, task, response, budget - spent[row]))
        outcomes = dict(zip(episodes, run_all(jobs, self._deadline, self._workers)))

        result = unplayed(len(identities), self._tasks[0].grammar.max_actions, self.info_keys, np)
        observations: dict[int, Sequence[int]] = {}
        for row in rows:
            outcome = outcomes.get(row)
            if outcome is None or isinstance(outcome, BaseException):
                result.failed[row] = True
                if outcome is not None:
                    self._note_failure(identities[row], "step", outcome)
                self._drop(identities[row])
                continue
            step, observations[row] = outcome
            episode, response = episodes[row], parsed[row]
            done = min(response.num_valid, budget - spent[row])
            wrong = response.num_valid != response.num_parsed or response.num_valid == 0 or not step.valid
            result.actions[row, :done] = response.actions[:done]
            result.reward[row] = step.reward
            result.valid[row] = response.num_valid > 0 and step.valid
            result.format_error[row] = wrong
            result.state_hash[row] = text_hash(episode.content or episode.observation)
            result.terminated[row] = step.terminated
            # In the last turn it is the limit of turns that ends the episode: each takes an action of a service.
            used_up = spent[row] + done >= budget and turns[row] + 1 < last[row]
            result.truncated[row] = not step.terminated and (step.truncated or used_up)
            result.success[row] = step.success
            for name, value in step.info.items():
                result.info[name][row] = value
            episode.observation, episode.content = step.observation, ""
            if result.terminated[row] or result.truncated[row] or turns[row] + 1 >= last[row]:
                self._drop(identities[row])
                if self._ended is not None:
                    with self._lock:
                        self._ended[identities[row]] = episode
        self._count_call(began)
        return result, *self._padded(identities, observations)

    def _begin(
        self, identities: Sequence[Identity], seeds: Mapping[int, int], check: Callable[[int, _Episode], None]
    ) -> dict[int, _Episode]:
        """Starts the episodes of some rows; those that fail, also in `check`, are noted and left out."""
        started: dict[Identity, _Episode] = {}
        late = threading.Event()
        jobs = [partial(self._start, identities[row], seed, started, late) for row, seed in seeds.items()]
        outcomes = run_all(jobs, self._deadline, self._workers)
        with self._lock:
            late.set()
        begun = {}
        for row, outcome in zip(seeds, outcomes):
            episode = started.get(identities[row], outcome)  # it may have started after the deadline
            if not isinstance(episode, BaseException):
                try:
                    check(row, episode)
                except BadValue as error:
                    episode.env.close()
                    episode = error
            if isinstance(episode, BaseException):
                self._note_failure(identities[row], "reset", episode)
                continue
            begun[row] = episode
            with self._lock:
                self._episodes[identities[row]] = episode
        return begun

    def _start(
        self, identity: Identity, seed: int, started: dict[Identity, _Episode], late: threading.Event
    ) -> _Episode:
        env = self._task(identity).make()
        try:
            text = env.reset(seed)
            if not isinstance(text, str):
                raise TypeError(f"reset returned {type(text).__name__}; expected text")
            content: str = env.content(seed) if self._task(identity).has_content else ""  # type: ignore[attr-defined]
            episode = _Episode(env, seed, text, self._tokenizer.encode(text), text, content)
            with self._lock:
                if late.is_set():
                    raise TimeoutError("nobody waits for this environment any more")
                started[identity] = episode
            return episode
        except BaseException:
            env.close()
            raise

    def _step(
        self, episode: _Episode, data: bytes, task: HostTask, response: HostResponse, budget: int
    ) -> tuple[HostStep, Sequence[int]]:
        """The result of a turn, checked, and the tokens of its observation."""
        names, text = task.response_format.actions, task.response_format.forced_text + data.decode("utf-8", "replace")
        actions = [names[action] for action in response.actions] if names else list(response.items)
        step = episode.env.step(text, actions[:budget])
        if not isinstance(step, HostStep) or not isinstance(step.observation, str):
            raise TypeError(f"step returned {step!r}; expected a HostStep whose observation is text")
        unknown = set(step.info) - set(task.info_keys)
        if unknown:
            raise BadValue.of(
                "info", ", ".join(sorted(unknown)), "expected names out of the task's info_keys; add them there"
            )
        for name, value in (("reward", step.reward), *step.info.items()):
            if not abs(value) <= _LARGEST:
                raise BadValue.of(f"{name}", value, "expected a finite number that float32 holds")
        return step, self._tokenizer.encode(step.observation)

    def _drop(self, identity: Identity) -> None:
        """Ends an episode, and forgets it."""
        with self._lock:
            episode = self._episodes.pop(identity, None)
            if self._ended is not None:
                self._ended.pop(identity, None)
        if episode is not None:
            episode.env.close()

    def _count_call(self, began: float) -> None:
        with self._lock:
            self._report.calls += 1
            self._report.seconds += time.monotonic() - began

    def _note_failure(self, identity: Identity, what: str, error: BaseException) -> None:
        message = shortened(f"{type(error).__name__}: {error}", MAX_FOREIGN)
        *_, group, member = identity
        failure = Failure(self._task(identity).name, group, member, what, message)
        _log.warning("host environment %s, group %d, member %d failed in %s: %s", *failure)
        with self._lock:
            self._report.failures.append(failure)

    def _padded(
        self, identities: Sequence[Identity], observations: Mapping[int, Sequence[int]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Observations by row as arrays: tokens i32[B, O], padded with -1, and whether they were cut, bool[B]."""
        width = max(task.observation_tokens for task in self._tasks)
        tokens, overflow = np.full((len(identities), width), -1, np.int32), np.zeros(len(identities), bool)
        for row, ids in observations.items():
            limit = self._task(identities[row]).observation_tokens
            tokens[row, : min(len(ids), limit)] = ids[:limit]
            overflow[row] = len(ids) > limit
        return tokens, overflow

    def _task(self, identity: Identity) -> HostTask:
        return self._tasks[identity[-3]]


def _identities(rows: Any) -> list[Identity]:
    return [tuple(row) for row in np.asarray(rows).tolist()]


def text_hash(text: str) -> np.ndarray:
    """The `TurnResult.state_hash` of an observation, u32[2]."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.frombuffer(digest, "<u4")
