"""Runs services as host environments of a rollout: one item per episode, scores as rewards, lost instances replaced.

An instance is lost if its server was killed, forgot it, or answers late or with garbage. It is replaced by a fresh one,
on which the episode is replayed: the same item and the same actions. If every answer is the same as before, the episode
continues, and the retry is counted. If an answer differs, or time is up, the episode fails and is not used.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

from agentrl_jax.rollout.envs.host_environment import HostStep
from agentrl_jax.services.client import FIRST_PAUSE, LONGEST_PAUSE, Lost, ServiceError
from agentrl_jax.services.environment import Service, ServiceEnvironment, StepResult
from agentrl_jax.services.pools import InstancePool, Lease
from agentrl_jax.services.shadow_env import play_along

RETRIES = "retries"
"""Key in `HostStep.info`: the number of instances that were lost and replaced in a turn."""

ScoreRule = Literal["sum", "last", "max"]
"""Return of an episode: the sum of rewards, the score after its last turn, or the best score on the way."""

Result = TypeVar("Result")


class Differs(ServiceError):
    """A replayed episode got different answers: the environment is not deterministic."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BridgeConfig:
    """How episodes of a service are played.

    Attributes:
        items: items that seeds choose from.
        score: how the return of an episode is computed.
        scale: factor of scores and rewards.
        progress: extra reward for the full range of `Service.progress`; 0 turns it off.
        seconds: time that a turn may take, with all attempts; less than the deadline of the callback.
        retries: instances that may be lost in a turn.
        told: called with each item and the first observation shown for it.
    """

    items: Sequence[int]
    score: ScoreRule = "sum"
    scale: float = 1.0
    progress: float = 0.0
    seconds: float = 50.0
    retries: int = 3
    told: Callable[[int, str], None] = lambda item, shown: None


class BridgedEnvironment:
    """One episode of a service, as a `HostEnvironment`."""

    def __init__(self, service: Service, pool: InstancePool, config: BridgeConfig):
        """Sends no request yet."""
        self._service, self._pool, self._config = service, pool, config
        self._lease: Lease | None = None
        self._beside: ServiceEnvironment | None = None
        self._item = 0
        self._first, self._shown = StepResult(""), ""
        self._played: list[tuple[str, StepResult]] = []
        self._paid = self._worth = self._done = 0.0
        self._begun = False
        self._lost = self._told = 0
        self._lock = threading.Lock()
        self._whole, self._over = True, False

    def reset(self, seed: int) -> str:
        """Starts the episode of item number `seed`, modulo the number of items.

        Raises:
            Lost: no instance became available in time.
        """
        self._item = self._config.items[seed % len(self._config.items)]
        with self._working():
            lease = self._attempts(self._enter)
        self._first, self._shown, self._begun = lease.first, lease.first.observation, True
        self._config.told(self._item, lease.first.observation)
        if self._config.progress:
            self._beside = play_along(self._service, self._item, self._shown)
        return self._shown

    def step(self, response: str, actions: Sequence[str]) -> HostStep:
        """Plays the action that the service's own parser finds in a response.

        Raises:
            Lost: the instance was lost and could not be replaced, or the new one answered differently on replay.
        """
        reading = self._service.read(response)
        if reading.action is None:
            self._shown = reading.complaint
            return HostStep(self._shown, valid=False, info=self._news())
        action = reading.action
        with self._working():
            answer = self._attempts(lambda deadline: self._enter(deadline).step(action, deadline))
        self._played.append((action, answer))
        self._shown = answer.observation
        return HostStep(
            answer.observation,
            reward=self._earned(answer) * self._config.scale + self._gained(action),
            terminated=answer.done,
            success=self._service.solved(answer),
            valid=bool(action.strip()),
            info=self._news(),
        )

    def _news(self) -> dict[str, float]:
        """Number of lost instances not yet reported."""
        lost, self._told = self._lost - self._told, self._lost
        return {RETRIES: float(lost)}

    def close(self) -> None:
        """Returns the instance to the pool, or abandons it if a request is still running."""
        self._over = True
        self._leave(good=self._whole)

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """Marks the instance as in use; if the block fails, it stays so and the instance is not reused."""
        self._whole = False
        yield
        self._whole = True

    def _leave(self, *, good: bool) -> None:
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.leave(good=good)

    def _enter(self, deadline: float) -> Lease:
        """The current instance, or a fresh one on which the episode has been replayed up to this point."""
        if self._lease is not None:
            return self._lease
        lease = self._pool.open(self._item, deadline)
        try:
            if self._begun:
                self._compare("a reset", self._first, lease.first)
            for action, answer in self._played:
                self._compare(action, answer, lease.step(action, deadline))
        except BaseException:
            lease.leave(good=False)
            raise
        with self._lock:
            if not self._over:
                self._lease = lease
                return lease
        lease.leave(good=False)
        raise Lost("nobody waits for this episode any more")

    def _compare(self, asked: str, told: StepResult, again: StepResult) -> None:
        old, new = ((x.observation, x.reward, x.score, x.done) for x in (told, again))
        if old != new:
            raise Differs(f"item {self._item}, played again, answers {new} to {asked!r}, not {old}")

    def _attempts(self, ask: Callable[[float], Result]) -> Result:
        """Result of `ask`, repeated while instances are lost and time remains; `ask` gets a deadline.

        A single attempt gets half of the time, so that a hanging server leaves some for another attempt.
        """
        end, pause, lost = time.monotonic() + self._config.seconds, FIRST_PAUSE, 0
        while True:
            try:
                return ask(min(end, time.monotonic() + self._config.seconds / 2))
            except Lost:
                lost += 1
                self._lost += 1
                self._leave(good=False)
                if self._over or lost > self._config.retries or time.monotonic() + pause >= end:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _earned(self, answer: StepResult) -> float:
        """Reward of a turn under the score rule."""
        if self._config.score == "sum":
            return answer.reward
        self._worth = max(self._worth, answer.score) if self._config.score == "max" else answer.score
        earned, self._paid = self._worth - self._paid, self._worth
        return earned

    def _gained(self, action: str) -> float:
        """Reward of a turn for its change in progress; negative if progress falls."""
        if self._beside is None or self._service.progress is None:
            return 0.0
        self._beside.step(action)
        before, self._done = self._done, self._service.progress(self._beside)
        return self._config.progress * (self._done - before)
