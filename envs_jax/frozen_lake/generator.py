"""Samples FrozenLake levels from a key, on the device.

The distribution is that of RAGEN's first version (arXiv 2504.20073). Every cell is frozen with a given probability,
else a hole. Start and goal are a uniform pair of different cells and replace the cells there. Board, start and goal are
resampled together until the goal can be reached from the start without stepping on a hole. The number of attempts is
unbounded, so the distribution is exact. Start and goal are neighbors with positive probability on every board, so every
attempt can succeed and the loop ends with probability one.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8, Key

from envs_jax.frozen_lake.text import FROZEN, GOAL, HOLE, START


def generate(key: Key[Array, ""], height: int, width: int, frozen_probability: Float[Array, ""]) -> Int8[Array, "H W"]:
    """Samples a level of at least two cells, with one start and one goal that is reachable.

    Attempt `i` uses `fold_in(key, i)`, so a level does not depend on the rest of its batch.
    """

    def draw(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        attempt, _ = carry
        return attempt + 1, _candidate(jax.random.fold_in(key, attempt), height, width, frozen_probability)

    nothing = jnp.zeros((height, width), jnp.int8)
    return jax.lax.while_loop(lambda carry: ~solvable(carry[1]), draw, (jnp.int32(0), nothing))[1]


def solvable(level: Int[Array, "H W"]) -> Bool[Array, ""]:
    """Returns whether the goal of a level can be reached from its start without stepping on a hole."""
    safe = level != HOLE

    def spread(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reached = carry[0]
        around = jnp.pad(reached, 1)
        grown = reached | around[2:, 1:-1] | around[:-2, 1:-1] | around[1:-1, 2:] | around[1:-1, :-2]
        grown &= safe
        return grown, jnp.any(grown != reached)

    reached, _ = jax.lax.while_loop(lambda carry: carry[1], spread, (level == START, jnp.bool_(True)))
    return jnp.any(reached & (level == GOAL))


def _candidate(key: jax.Array, height: int, width: int, frozen_probability: jax.Array) -> jax.Array:
    size = height * width
    cells = jnp.arange(size)
    # One call for everything, because each call of a random function adds much compile time. The two cells with the
    # largest numbers are a uniform pair, except for ties, which occur in fewer than one 4x4 board in 10^5.
    ice, uniforms = jax.random.uniform(key, (2, size))
    frozen = ice < frozen_probability
    start = jnp.argmax(uniforms)
    goal = jnp.argmax(jnp.where(cells == start, -1.0, uniforms))
    level = jnp.where(frozen, FROZEN, HOLE)
    level = jnp.where(cells == goal, GOAL, jnp.where(cells == start, START, level))
    return level.reshape(height, width).astype(jnp.int8)
