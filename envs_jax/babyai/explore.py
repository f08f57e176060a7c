"""Actions that look around until an agent has seen what its mission is about.

A shortest plan walks to things that the agent cannot know of, so that a model which imitates it learns to guess. The
demonstrations of BabyAI's paper are of a bot that explores, too (Chevalier-Boisvert et al. 2019, arXiv 1810.08272).

Shapes: `N` levels, `F` actions before, `T` rounds, `A` listed actions, `H`, `W` rows and columns of the grid,
`S` object slots.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int8, Int32

from envs_jax.babyai import macros
from envs_jax.babyai.codes import KEY, LOCKED_DOOR, NO_VERB, OBJECT, OPEN, UNSEEN, WALL, color_of, form_of
from envs_jax.babyai.env import BabyAI
from envs_jax.babyai.state import NOTHING, BabyAIState, World
from envs_jax.babyai.view import cells_of

BATCH = 512
"""Levels that explore together."""


def explorations(
    env: BabyAI, params: Any, levels: Int8[np.ndarray, "N H W"], first: Int32[np.ndarray, "N F"], rounds: int
) -> Int32[np.ndarray, "N T"]:
    """Returns the actions of `explore` on each level after the actions `first`, padded with -1, in batches."""
    first = np.pad(first, ((0, 0), (0, max(0, rounds - first.shape[1]))), constant_values=-1)  # one program for all
    parts = []
    for begin in range(0, len(levels), BATCH):
        rows = np.minimum(np.arange(begin, begin + BATCH), len(levels) - 1)
        found = explore(env, params, jnp.asarray(levels[rows]), jnp.asarray(first[rows]), rounds)
        parts.append(np.asarray(found)[: len(levels) - begin])
    return np.concatenate(parts)


@functools.partial(jax.jit, static_argnames=("env", "rounds"))
def explore(
    env: BabyAI, params: Any, levels: Int8[Array, "N H W"], first: Int32[Array, "N F"], rounds: int
) -> Int32[Array, "N T"]:
    """Returns at most `rounds` actions that look around on each level, after the actions `first`; padded with -1.

    Each is the listed action, the first of several, that brings the most cells into view which no observation has
    shown. They end when a thing of each description in the mission has been seen, or no action shows a new cell. For
    what can only be reached through a locked door, such a door and its key are enough. Nothing is picked up or dropped.
    The rule is ours: it knows what an action would show, and whether what is wanted is locked away, but not where.
    """
    params = params.replace(max_steps_in_episode=jnp.int32(first.shape[1] + rounds + 1))

    def step(state: BabyAIState, action: jax.Array) -> BabyAIState:
        return env.step_env(jax.random.key(0), state, action, params)[1]

    def start(level: jax.Array, first: jax.Array) -> tuple[BabyAIState, jax.Array]:
        def take(carry: tuple[BabyAIState, jax.Array], action: jax.Array) -> tuple[tuple[BabyAIState, jax.Array], None]:
            after = step(carry[0], action)
            return _select(action >= 0, (after, carry[1] | _shown(after)), carry), None

        begun = env.reset_to_level(level, params)[1]
        return jax.lax.scan(take, (begun, _shown(begun)), first)[0]

    def look(state: BabyAIState, known: jax.Array, reached: jax.Array) -> tuple[jax.Array, BabyAIState, jax.Array]:
        listed = env.candidates(state)
        picks = (listed >= macros.STARTS[macros.PICK]) & (listed < macros.STARTS[macros.GO])
        moves = (listed >= 0) & (listed != macros.DROP_IT) & ~picks
        after = jax.vmap(functools.partial(step, state))(listed)
        shown = jax.vmap(_shown)(after)
        goes_on = moves & ~jax.vmap(lambda state: env.is_done(state, params))(after)
        gain = jnp.where(goes_on, jnp.sum(shown & ~known, axis=(1, 2)), 0)
        best = jnp.argmax(gain)
        wanted = ~env.is_done(state, params) & ~_informed(state, known, reached) & (gain[best] > 0)
        moved = jax.tree.map(lambda leaf: leaf[best], after), known | shown[best]
        return jnp.where(wanted, listed[best], -1), *_select(wanted, moved, (state, known))

    def all_look(carry: Any) -> Any:
        number, _, table, states, known = carry
        actions, states, known = jax.vmap(look)(states, known, reached)
        return number + 1, jnp.any(actions >= 0), table.at[:, number].set(actions), states, known

    states, known = jax.vmap(start)(levels, first)
    reached = jax.vmap(_reached)(states.world)
    begun = jnp.int32(0), jnp.bool_(True), jnp.full((len(levels), rounds), -1, jnp.int32), states, known
    return jax.lax.while_loop(lambda carry: carry[1] & (carry[0] < rounds), all_look, begun)[2]


def _select(flag: Bool[Array, ""], new: Any, old: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), new, old)


def _informed(state: BabyAIState, known: Bool[Array, "H W"], reached: Bool[Array, " S"]) -> Bool[Array, ""]:
    """Returns whether of each description in the mission a thing, or the way to unlock it, has been seen."""
    world, bits = state.world, jnp.arange(len(state.world.places))
    seen = (world.places >= 0) & known.reshape(-1)[jnp.maximum(world.places, 0)] | (world.carrying == bits)
    cells = world.slot_cells.astype(int)
    locked = (cells >= OBJECT) & (form_of(cells) == LOCKED_DOOR)
    key = (cells >= OBJECT) & (form_of(cells) == KEY)
    fits = color_of(cells)[:, None] == color_of(cells)
    opens = jnp.any((locked & seen)[:, None] & (key & seen) & fits)
    needs_key = jnp.any(locked) & (~reached | locked & (state.mission.verb == OPEN)[:, None, None])
    tracked = (state.progress.tracked[:, :, bits // 32] >> (bits % 32).astype(jnp.uint32) & 1).astype(bool)
    found = jnp.any(tracked & jnp.where(needs_key, opens, seen), axis=-1) | ~jnp.any(tracked, axis=-1)
    return jnp.all(found | (state.mission.verb == NO_VERB)[:, None])


def _reached(world: World) -> Bool[Array, " S"]:
    """Returns which objects can be reached without a key, where other objects are no obstacles."""
    locked = (world.cells >= OBJECT) & (form_of(world.cells.astype(int)) == LOCKED_DOOR)
    barrier = (world.cells == WALL) | locked

    def spread(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        old, _ = carry
        inside = jnp.pad(old & ~barrier, 1)
        new = old | inside[2:, 1:-1] | inside[:-2, 1:-1] | inside[1:-1, 2:] | inside[1:-1, :-2]
        return new, jnp.any(new != old)

    begun = jnp.zeros(barrier.shape, bool).at[world.y, world.x].set(True)
    cells, _ = jax.lax.while_loop(lambda carry: carry[1], spread, (begun, jnp.bool_(True)))
    return (world.places < 0) | cells.reshape(-1)[jnp.maximum(world.places, 0)]


def _shown(state: BabyAIState) -> Bool[Array, "H W"]:
    """The cells of the grid that the view shows."""
    world: World = state.world
    rows, columns = cells_of(world)
    inside = (rows >= 0) & (rows < world.cells.shape[0]) & (columns >= 0) & (columns < world.cells.shape[1])
    empty = jnp.zeros(world.cells.shape, bool)
    place = jnp.where(inside, rows, NOTHING)
    return empty.at[place, columns].max(inside & (state.view != UNSEEN), mode="drop", wrap_negative_indices=False)
