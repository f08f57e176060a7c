"""Parts of an episode that a new context reads again.

Shapes: `N` contexts, `R` recalled parts, `W` tokens of the longest message or response, `S` tokens.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from agentrl_jax.rollout.contexts import Join
from agentrl_jax.rollout.trajectory import Trajectory


class Parts(NamedTuple):
    """What N contexts read between the prefix and their first message."""

    tokens: Int[Array, "N R W"]
    real: Bool[Array, "N R W"]
    """The token is read."""


def recalled_parts(trajectory: Trajectory, episode: Int[Array, " N"], join: Join) -> Parts:
    """The parts that the joins [N] of messages of these episodes name; none where a message goes on."""
    assert join.recall is not None
    width = max(trajectory.observation.shape[-1], trajectory.response.tokens.shape[-1])
    known = (join.recall >= 0) & join.restart[:, None]
    turn, said = jnp.maximum(join.recall, 0) // 2, join.recall % 2 == 1

    def of_turn(x):
        return x.at[episode[:, None], turn].get(mode="clip")

    def wide(x):
        found = of_turn(x)
        return jnp.pad(found, ((0, 0), (0, 0), (0, width - found.shape[-1])))

    read, spoken = wide(trajectory.observation), wide(trajectory.response.tokens)
    end = jnp.where(said, of_turn(trajectory.response.length), of_turn(trajectory.observation_length))
    # What follows the prefix directly joins no response.
    opens = known & (jnp.cumsum(known, axis=1) == 1)
    begin = jnp.where(opens & ~said, of_turn(trajectory.join.lead), 0)
    column = jnp.arange(width)
    real = known[..., None] & (begin[..., None] <= column) & (column < end[..., None])
    return Parts(jnp.where(said[..., None], spoken, read), real)


def first_read(join: Join) -> Int[Array, " N"]:
    """The first token of each message that is read: behind its lead where it follows the prefix directly."""
    recalls = jnp.zeros_like(join.restart) if join.recall is None else jnp.any(join.recall >= 0, axis=-1)
    return jnp.where(join.restart & ~recalls, join.lead, 0)


def compact(tokens: Int[Array, "N S"], real: Bool[Array, "N S"], size: int | None = None) -> Int[Array, "N W"]:
    """The real tokens of each row moved to the left, 0 behind them, in rows of `size` tokens (None: as before)."""
    order = jnp.argsort(~real, axis=1, stable=True)[:, :size]
    return jnp.take_along_axis(jnp.where(real, tokens, 0), order, axis=1)
