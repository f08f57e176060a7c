"""Environments with a context, which says how every message joins, and plays turns that the agent has with itself.

Shapes: `B` rows, `K` tasks, `O` tokens of a message.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int, Key

from agentrl_jax.algos import masked
from agentrl_jax.rollout.contexts import ACT, Bounds, Context, Seen, no_join
from agentrl_jax.rollout.envs.batched_env import BatchedEnv, Message
from agentrl_jax.rollout.trajectory import EpisodeIds, Response, RolloutSettings, TurnResult
from agentrl_jax.text.grammar import GrammarTable, ParsedResponse


class ContextState(struct.PyTreeNode):
    """State of B episodes."""

    env: Any
    context: Any
    turn: Int[Array, " B"]
    """Turns finished, of all kinds."""
    kind: Int[Array, " B"]
    """Of the current turn."""


@dataclasses.dataclass(frozen=True, eq=False)
class ContextEnv:
    """A `BatchedEnv` whose messages join as `context` says. Turns that do not act leave the environments alone."""

    env: BatchedEnv
    context: Context
    bounds: Bounds

    @property
    def prefix(self) -> np.ndarray | jax.Array:
        """See `BatchedEnv.prefix`."""
        return self.env.prefix

    @property
    def prefix_length(self) -> np.ndarray | jax.Array:
        """See `BatchedEnv.prefix_length`."""
        return self.env.prefix_length

    @property
    def grammars(self) -> tuple[GrammarTable, ...]:
        """Those of the K tasks, then those of the context's notes."""
        return (*self.env.grammars, *(note.grammar for note in self.context.notes))

    @property
    def observation_tokens(self) -> int:
        """See `BatchedEnv.observation_tokens`."""
        return max(self.env.observation_tokens, self.context.message_tokens)

    def empty_result(self, batch: int) -> TurnResult:
        """See `BatchedEnv.empty_result`."""
        return self.env.empty_result(batch)

    def reset(
        self, key: Key[Array, ""], settings: RolloutSettings, ids: EpisodeIds, mask: Bool[Array, " B"] | None = None
    ) -> tuple[ContextState, Message]:
        """See `BatchedEnv.reset`."""
        env, message = self.env.reset(key, settings, ids, mask)
        message, zeros = self._wide(message), jnp.zeros_like(message.length)
        return ContextState(env=env, context=self.context.start(message), turn=zeros, kind=zeros), message

    def step(
        self,
        settings: RolloutSettings,
        state: ContextState,
        response: Response,
        parsed: ParsedResponse,
        mask: Bool[Array, " B"],
        *,
        fresh: bool = False,
    ) -> tuple[ContextState, TurnResult, Message]:
        """See `BatchedEnv.step`; the context decides instead of `fresh`."""
        acting = mask & (state.kind == ACT) if self.context.notes else mask
        env, result, message = self.env.step(
            settings, state.env, response, parsed, acting, fresh=fresh or self.context.fresh
        )
        if self.context.notes:
            nothing = self.empty_result(len(mask)).replace(valid=jnp.ones(len(mask), bool))
            result = masked.where(acting, result, nothing)
        seen = Seen(state.turn, state.kind, response, parsed, result, self._wide(message))
        after, message = self.context.follow(state.context, seen)
        followed = ContextState(env=env, context=after, turn=state.turn + 1, kind=message.join.kind)
        return masked.where(mask, followed, state), result, message

    def _wide(self, message: Message) -> Message:
        """A message of the environments with room for what the context writes."""
        rows, width = message.tokens.shape
        join = message.join.replace(recall=no_join(rows, self.bounds.recalled).recall)
        more = ((0, 0), (0, self.observation_tokens - width))
        return message.replace(tokens=jnp.pad(message.tokens, more), join=join)


def in_context(batched_env: BatchedEnv, context: Context, turns: int) -> ContextEnv:
    """The environments for episodes of at most `turns` turns that act."""
    return ContextEnv(batched_env, context, context.bounds(context.turns_of(turns)))
