"""Runs services as host environments of a rollout: one item per episode, scores as rewards, lost instances replaced.

An instance is lost if its server was killed, forgot it, or answers late or with garbage. The episode is then replayed
on a fresh one, and continues if every answer is the same as before. If one differs, or time is up, the episode fails.
"""

import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeVar

from agentrl_jax.environments import HostStep
from agentrl_jax.services.client import FIRST_PAUSE, LONGEST_PAUSE, Lost, ServiceError
from agentrl_jax.services.environment import Service, ServiceEnvironment, StepResult
from agentrl_jax.services.pools import InstancePool, Lease
from agentrl_jax.services.screenshots import SECONDS, EpisodeScreenshots
from agentrl_jax.services.shadow_env import start_shadow

RETRIES = "retries"
"""Key in `HostStep.info`: the number of instances that were lost and replaced in a turn."""
PROGRESS = "progress"
"""Key in `HostStep.info`: the change of progress in a turn; 0 in held-out episodes, in which nobody follows it."""

ScoreRule = Literal["sum", "last", "max"]
"""Return of an episode: the sum of rewards, the score after its last turn, or the best score on the way."""

Result = TypeVar("Result")


class Differs(ServiceError):
    """A replayed episode got different answers: the environment is not deterministic."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BridgeConfig:
    """How episodes of a service are played.

    Seeds choose from `items`. Scores and rewards are multiplied by `scale`; `progress` is the extra reward for the full
    range of `Service.progress`, whose changes are told if `tells_progress`. A turn may take `seconds` with all
    attempts, less than the deadline of the callback, and lose `retries` instances. `on_start` is called with each item
    and the first observation shown for it. `screenshots` returns what keeps those of the episode on an item, None for
    none.
    """

    items: Sequence[int]
    score: ScoreRule = "sum"
    scale: float = 1.0
    progress: float = 0.0
    tells_progress: bool = False
    seconds: float = 50.0
    retries: int = 3
    on_start: Callable[[int, str], None] = lambda item, observation: None
    screenshots: Callable[[int], EpisodeScreenshots | None] = lambda item: None


class BridgedEnvironment:
    """One episode of a service, as a `HostEnvironment`."""

    def __init__(self, service: Service, pool: InstancePool, config: BridgeConfig):
        """Sends no request yet."""
        self._service, self._pool, self._config = service, pool, config
        self._lease: Lease | None = None
        self._shadow: ServiceEnvironment | None = None
        self._item = 0
        self.last: StepResult | None = None
        """The last answer of the service."""
        self._first: StepResult | None = None
        self._steps: list[tuple[str, StepResult]] = []
        self._last_return = self._last_progress = 0.0
        self._responses = self._unreported_losses = 0
        self._screenshots: EpisodeScreenshots | None = None
        self._end = 0.0
        """Until when the turn may take, in monotonic seconds."""
        self._lock = threading.Lock()
        self._idle, self._closed = True, False

    def reset(self, seed: int) -> str:
        """Starts the episode of item number `seed`, modulo the number of items; `Lost` if no instance comes in time."""
        self._item = self._config.items[seed % len(self._config.items)]
        self._screenshots = self._config.screenshots(self._item)
        self._end = time.monotonic() + self._config.seconds
        self.last = self._first = first = self._attempt(self._enter).first
        self._config.on_start(self._item, first.observation)
        if self._config.progress:
            self._shadow = start_shadow(self._service, self._item, first.observation)
        self._show()
        return first.observation

    def step(self, response: str, actions: Sequence[str]) -> HostStep:
        """Plays the action that the service's parser finds in a response; `Lost` if the instance cannot be replaced."""
        parsed = self._service.read(response)
        self._responses, self._end = self._responses + 1, time.monotonic() + self._config.seconds
        if parsed.action is None:
            self._show()
            return HostStep(parsed.complaint, valid=False, info=self._info())
        action = parsed.action
        answer = self._attempt(lambda deadline: self._enter(deadline).step(action, deadline))
        self._steps.append((action, answer))
        self.last = answer
        self._show()
        truncated = answer.done and answer.info.get("truncated") is True
        change = 0.0 if self._shadow is None else self._progress(action, self._shadow)
        return HostStep(
            answer.observation,
            reward=self._score_reward(answer) * self._config.scale + self._config.progress * change,
            terminated=answer.done and not truncated,
            truncated=truncated,
            success=self._service.solved(answer),
            valid=bool(action.strip()),
            info=self._info(change),
        )

    def close(self) -> None:
        """Returns the instance to the pool, or abandons it if a request is still running."""
        self._closed = True
        if self._idle and self._screenshots is not None:
            self._screenshots.finish()
        self._leave(good=self._idle)

    def _show(self) -> None:
        """Takes a screenshot of the instance, which is in use until it is there, within the time of the turn."""
        lease = self._lease
        if lease is not None and self._screenshots is not None:
            until = min(time.monotonic() + SECONDS, self._end)
            self._idle = False
            self._screenshots.take(self._responses, lambda: lease.screenshot(until))
            self._idle = True

    def _info(self, change: float = 0.0) -> dict[str, float]:
        losses, self._unreported_losses = self._unreported_losses, 0
        return {RETRIES: float(losses)} | ({PROGRESS: change} if self._config.tells_progress else {})

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
            if self._first is not None:
                self._compare("a reset", self._first, lease.first)
            for action, answer in self._steps:
                self._compare(action, answer, lease.step(action, deadline))
            with self._lock:
                if self._closed:
                    raise Lost("nobody waits for this episode any more")
                self._lease = lease
                return lease
        except BaseException:
            lease.leave(good=False)
            raise

    def _compare(self, action: str, before: StepResult, again: StepResult) -> None:
        old, new = ((x.observation, x.reward, x.score, x.done) for x in (before, again))
        if old != new:
            raise Differs(f"item {self._item}, played again, answers {new} to {action!r}, not {old}")

    def _attempt(self, ask: Callable[[float], Result]) -> Result:
        """Result of `ask`, repeated while instances are lost and time remains; `ask` gets a deadline.

        A single attempt gets half of the time, so that a hanging server leaves some for another attempt. Until there is
        a result, the instance is in use and will not be reused.
        """
        self._idle = False
        end, pause, losses = self._end, FIRST_PAUSE, 0
        while True:
            try:
                result = ask(min(end, time.monotonic() + self._config.seconds / 2))
                self._idle = True
                return result
            except Lost:
                losses += 1
                self._unreported_losses += 1
                self._leave(good=False)
                if self._closed or losses > self._config.retries or time.monotonic() + pause >= end:
                    raise
                time.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _score_reward(self, answer: StepResult) -> float:
        """Reward of a turn under the score rule."""
        if self._config.score == "sum":
            return answer.reward
        best = max(self._last_return, answer.score)
        before, self._last_return = self._last_return, best if self._config.score == "max" else answer.score
        return self._last_return - before

    def _progress(self, action: str, shadow: ServiceEnvironment) -> float:
        """Change of an episode's progress in a turn; negative if it falls."""
        assert self._service.progress is not None
        shadow.step(action)
        before, self._last_progress = self._last_progress, self._service.progress(shadow)
        return self._last_progress - before
