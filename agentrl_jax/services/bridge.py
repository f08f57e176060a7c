"""Services as host environments of a rollout: episodes by item, scores as rewards, lost instances replaced.

An instance that is lost (its server was killed, forgot it, or answers late or with garbage) is replaced by a fresh one,
on which the episode is played again: the same item, the same actions. Where every answer is the one that was given
before, the episode goes on as if nothing had happened, and it is counted; where one differs, or time is up, the episode
has failed, and nothing is learned from it.
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
"""Name in `HostStep.info` of the number of instances that were lost and replaced in a turn."""

ScoreRule = Literal["sum", "last", "max"]
"""What an episode is worth: all rewards together, the score after its last turn, or the best score on the way."""

Result = TypeVar("Result")


class Differs(ServiceError):
    """An episode that was played again went another way: the environment is not deterministic."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BridgeConfig:
    """How episodes are played over a bridge.

    Attributes:
        items: that seeds choose among.
        score: what an episode is worth.
        scale: what scores and rewards are multiplied by.
        progress: what the whole of `Service.progress` is worth beside; 0 leaves it out.
        seconds: that a turn may take, with all attempts; less than the deadline of the callback.
        retries: instances that may be lost in a turn.
        told: is told each item and what it showed first.
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
        """Asks for nothing yet."""
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
        """Starts the episode of the item that `seed` stands for, modulo their number.

        Raises:
            Lost: no instance could be had in time.
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
        """Plays the action that the service's own reader finds in a response.

        Raises:
            Lost: the instance was lost and could not be replaced, or the new one tells another story.
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
        """Instances that were lost and that nobody has been told of."""
        lost, self._told = self._lost - self._told, self._lost
        return {RETRIES: float(lost)}

    def close(self) -> None:
        """Gives the instance back; one that still works on something is given up."""
        self._over = True
        self._leave(good=self._whole)

    @contextlib.contextmanager
    def _working(self) -> Iterator[None]:
        """While this goes on, and for ever if it fails, nobody else may have the instance."""
        self._whole = False
        yield
        self._whole = True

    def _leave(self, *, good: bool) -> None:
        with self._lock:
            lease, self._lease = self._lease, None
        if lease is not None:
            lease.leave(good=good)

    def _enter(self, deadline: float) -> Lease:
        """The instance, or a fresh one on which the episode was played as far."""
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
        """What comes of asking, again and again while instances are lost and there is time; `ask` is given a deadline.

        A single attempt has half of the time, so that a server that hangs leaves some for another.
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
        """What a turn adds to the worth of its episode."""
        if self._config.score == "sum":
            return answer.reward
        self._worth = max(self._worth, answer.score) if self._config.score == "max" else answer.score
        earned, self._paid = self._worth - self._paid, self._worth
        return earned

    def _gained(self, action: str) -> float:
        """What a turn adds for the progress that it makes; less than nothing for a step back."""
        if self._beside is None or self._service.progress is None:
            return 0.0
        self._beside.step(action)
        before, self._done = self._done, self._service.progress(self._beside)
        return self._config.progress * (self._done - before)
