"""Environments in which a failed episode begins again on the same level, with feedback."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int, Key

from agentrl_jax.algos import masked
from agentrl_jax.rollout.envs.batched_env import CompiledEnv, Message, PromptedEnv
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.envs.host_episodes import Report
from agentrl_jax.rollout.trajectory import EpisodeIds, Response, RolloutSettings, TurnResult
from agentrl_jax.text.grammar import ParsedResponse

ATTEMPT = "attempt"
"""Name of the environment information that numbers the attempt of a turn, from 0."""


class RetryState(struct.PyTreeNode):
    """State of B episodes."""

    attempt_state: Any
    """Of the environments, in the current attempt."""
    start: Any
    """The same at the start of the first attempt."""
    attempt: Int[Array, " B"]
    """Attempts finished."""
    played: Int[Array, " B"]
    """Turns finished in all attempts."""
    solved: Bool[Array, " B"]


@dataclasses.dataclass(frozen=True, eq=False)
class RetryEnv(PromptedEnv):
    """An episode is up to `attempts` attempts at one level, and is over after the first that solves it.

    Each attempt is an episode of `env` with its own `turns` and `RolloutSettings.max_actions`, and the prompt's numbers
    from the start; compiled environments draw new noise. The conversation goes on, and the first message of a retry
    holds the feedback. The engine needs room for `attempts * turns` turns, also in its horizon. With one attempt,
    episodes are those of `env`. An episode whose last attempt plays all its turns after shorter attempts is truncated
    by a limit of actions.
    """

    env: CompiledEnv | HostEnv
    turns: int
    attempts: int

    @property
    def tasks(self) -> tuple[Any, ...]:  # type: ignore[override]
        """Those of `env`."""
        return self.env.tasks

    @property
    def on_host(self) -> bool:  # type: ignore[override]
        """See `PromptedEnv.on_host`."""
        return self.env.on_host

    def take_report(self) -> Report:
        """See `PromptedEnv.take_report`."""
        return self.env.take_report()

    def clear(self) -> None:
        """See `PromptedEnv.clear`."""
        self.env.clear()

    def levels(self, task: int) -> int:
        """Number of levels of a task; 0 if they are generated."""
        return self.env.levels(task)

    @property
    def env_params(self) -> tuple[Any, ...]:
        """Those of `env`."""
        return self.env.env_params

    @property
    def info_keys(self) -> tuple[str, ...]:
        """See `PromptedEnv.info_keys`; also `ATTEMPT`."""
        return (*self.env.info_keys, ATTEMPT)

    def reset(
        self, key: Key[Array, ""], settings: RolloutSettings, ids: EpisodeIds, mask: Bool[Array, " B"] | None = None
    ) -> tuple[RetryState, Message]:
        """See `BatchedEnv.reset`."""
        state, message = self.env.reset(key, settings, ids, mask)
        none = jnp.zeros_like(ids.task)
        return RetryState(state, state, attempt=none, played=none, solved=none > 0), message

    def step(
        self,
        settings: RolloutSettings,
        state: RetryState,
        response: Response,
        parsed: ParsedResponse,
        mask: Bool[Array, " B"],
        *,
        fresh: bool = False,
    ) -> tuple[RetryState, TurnResult, Message]:
        """See `BatchedEnv.step`."""
        own = settings.replace(horizon=jnp.int32(self.turns))
        stepped: Any
        stepped, result, message = self.env.step(own, state.attempt_state, response, parsed, mask, fresh=fresh)
        state = state.replace(played=state.played + mask, solved=state.solved | (mask & result.success))
        over = result.terminated | result.truncated | (stepped.turn >= self.turns)
        again = mask & over & ~state.solved & ~result.failed & (state.attempt + 1 < self.attempts)
        # The engine itself ends an episode at its horizon.
        ended = over & ~again & (state.played < settings.horizon)
        result = result.replace(
            terminated=result.terminated & ~again,
            truncated=(result.truncated & ~again) | (ended & ~result.terminated),
            info=result.info | {ATTEMPT: state.attempt.astype(jnp.float32)},
        )
        if self.attempts > 1:
            restarted, first = self.env.restart_level(
                own, stepped, state.start, again, result.reward, response.ended, fresh=fresh
            )
            stepped, message = masked.where(again, (restarted, first), (stepped, message))
        return state.replace(attempt_state=stepped, attempt=state.attempt + again), result, message
