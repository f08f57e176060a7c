"""Compiled environments in which a failed episode begins again on the same level, with feedback."""

import dataclasses
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from agentrl_jax.algos import masked
from agentrl_jax.rollout import rng
from agentrl_jax.rollout.envs.batched_env import CompiledEnv, EpisodeState, Message
from agentrl_jax.rollout.trajectory import EpisodeIds, Response, RolloutSettings, TurnResult
from agentrl_jax.text.grammar import ParsedResponse

ATTEMPT = "attempt"
"""Name of the environment information that numbers the attempt of a turn, from 0."""


class RetryState(EpisodeState):
    """State of B episodes; `turn`, `used` and `noise_key` are those of the current attempt."""

    start: tuple[Any, ...]
    """The first state of the level in each task, [B, ...]."""
    attempt: Int[Array, " B"]
    """Attempts finished."""
    played: Int[Array, " B"]
    """Turns finished in all attempts."""
    solved: Bool[Array, " B"]


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RetryEnv(CompiledEnv):
    """An episode is up to `attempts` attempts at one level, and is over after the first that solves it.

    Each attempt has its own `turns` and `RolloutSettings.max_actions`, new noise, and the prompt's numbers from the
    start. The conversation goes on, and the first message of a retry holds the feedback of the task's prompt. The
    engine needs room for `attempts * turns` turns, also in its horizon. With one attempt, episodes are those of
    `CompiledEnv`. An episode whose last attempt plays all its turns after shorter attempts is truncated by a limit of
    actions.
    """

    turns: int
    attempts: int

    @property
    def info_keys(self) -> tuple[str, ...]:
        """See `PromptedEnv.info_keys`; also `ATTEMPT`."""
        return (*super().info_keys, ATTEMPT)

    def reset(
        self, key: Key[Array, ""], settings: RolloutSettings, ids: EpisodeIds, mask: Bool[Array, " B"] | None = None
    ) -> tuple[RetryState, Message]:
        """See `BatchedEnv.reset`."""
        state, message = super().reset(key, settings, ids, mask)
        none = jnp.zeros_like(state.turn)
        return RetryState(**vars(state), start=state.envs, attempt=none, played=none, solved=none > 0), message

    def step(
        self,
        settings: RolloutSettings,
        state: Any,
        response: Response,
        parsed: ParsedResponse,
        mask: Bool[Array, " B"],
        *,
        fresh: bool = False,
    ) -> tuple[Any, TurnResult, Message]:
        """See `BatchedEnv.step`; `state` is a `RetryState`."""
        stepped: Any
        stepped, result, _ = super().step(settings, state, response, parsed, mask, fresh=fresh)
        stepped = stepped.replace(played=state.played + mask, solved=state.solved | (mask & result.success))
        over = result.terminated | result.truncated | (stepped.turn >= self.turns)
        again = mask & over & ~stepped.solved & ~result.failed & (state.attempt + 1 < self.attempts)
        # The engine itself ends an episode at its horizon.
        ended = over & ~again & (stepped.played < settings.horizon)
        result = result.replace(
            terminated=result.terminated & ~again,
            truncated=(result.truncated & ~again) | (ended & ~result.terminated),
            info=result.info | {ATTEMPT: state.attempt.astype(jnp.float32)},
        )
        retried = stepped.replace(
            envs=stepped.start,
            noise_key=rng.retry_noise_key(stepped.noise_key),
            turn=jnp.zeros_like(stepped.turn),
            used=jnp.zeros_like(stepped.used),
            attempt=stepped.attempt + 1,
        )
        stepped = masked.where(again, retried, stepped)
        first = jnp.full(mask.shape, fresh)
        message = self._messages(settings, stepped, stepped.envs, result.reward, first, response.ended, again)
        return stepped, result, message
