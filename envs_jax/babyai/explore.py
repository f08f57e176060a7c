"""Actions that look around until an agent has seen what its mission is about.

A shortest plan walks to things that the agent cannot know of, so that a model which imitates it learns to guess. The
demonstrations of BabyAI's paper are of a bot that explores, too (Chevalier-Boisvert et al. 2019, arXiv 1810.08272).

Shapes: `N` levels, `F` actions before, `T` rounds, `K` situations, `H`, `W` rows and columns of the grid, `S` object
slots.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8, Int32

from envs_jax.babyai import macros
from envs_jax.babyai.codes import EMPTY, KEY, LOCKED_DOOR, NO_VERB, OBJECT, OPEN, UNSEEN, WALL, color_of, form_of
from envs_jax.babyai.env import BabyAI
from envs_jax.babyai.search import advance, follow, in_batches, listed_actions, on_cpu
from envs_jax.babyai.state import NOTHING, BabyAIState, World
from envs_jax.babyai.view import cells_of

DEPTH = 5
"""Most actions to a view that is worth looking at."""

WIDTH = 32
"""Situations of a level that are kept of each depth."""

LEAST = 4
"""Unknown cells that a view has to show, if they are empty, to be worth looking at."""


def explorations(
    env: BabyAI, params: Any, levels: Int8[np.ndarray, "N H W"], first: Int32[np.ndarray, "N F"], rounds: int
) -> Int32[np.ndarray, "N T"]:
    """Returns at most `rounds` actions that look around on each level, after the actions `first`; padded with -1.

    Each is the first of the fewest listed actions after which, if all cells that no observation has shown were empty,
    the view would show at least `LEAST` of them; of these the one that shows most. So an action depends on nothing but
    observations, those of before included. They end when a thing of each description in the mission has been seen, or
    no view is worth it. For what can only be reached through a locked door, such a door and its key are enough; that
    this is so, is all that an agent could not know. Nothing is picked up or dropped.
    """
    with on_cpu():
        params = params.replace(max_steps_in_episode=jnp.int32(first.shape[1] + rounds + DEPTH + 1))
        known = np.zeros((len(levels), env.shape.height, env.shape.width), bool)
        for states, *_ in follow(env, params, levels, first):
            known |= in_batches(_shown, params, states)
        reached = in_batches(_reachable, params, states)
        found = np.full((len(levels), rounds), -1, np.int32)
        rows = np.arange(len(levels))
        for number in range(rounds):
            here = _take(states, rows)
            rows = rows[in_batches(functools.partial(_looks, env), params, here, known[rows], reached[rows])]
            if not len(rows):
                break
            actions = _next(env, params, _take(states, rows), known[rows])
            rows, actions = rows[actions >= 0], actions[actions >= 0]
            if not len(rows):
                break
            found[rows, number] = actions
            after, *_ = in_batches(functools.partial(advance, env), params, _take(states, rows), actions)
            known[rows] |= in_batches(_shown, params, after)
            states = jax.tree.map(lambda old, new, rows=rows: _put(old, rows, new), states, after)
        return found


def _next(env: BabyAI, params: Any, states: BabyAIState, known: Bool[np.ndarray, "K H W"]) -> Int32[np.ndarray, " K"]:
    """The next action of each situation; -1 where no view is worth it."""
    chosen = np.full(len(known), -1, np.int32)
    level, begun = np.arange(len(known)), None
    nodes = in_batches(_believed, params, states, known)
    for _ in range(DEPTH):
        listed = in_batches(functools.partial(listed_actions, env), params, nodes)
        picks = (listed >= macros.STARTS[macros.PICK]) & (listed < macros.STARTS[macros.GO])
        row, column = np.nonzero((listed >= 0) & (listed != macros.DROP_IT) & ~picks)
        if not len(row):
            break
        actions = listed[row, column]
        level, begun = level[row], actions if begun is None else begun[row]
        nodes, hashes, _, over = in_batches(functools.partial(advance, env), params, _take(nodes, row), actions)
        gain = np.sum(in_batches(_shown, params, nodes) & ~known[level], axis=(1, 2))
        worth = (gain >= LEAST) & ~over
        order = np.lexsort((-gain, level))
        order = order[worth[order]]
        decided, which = np.unique(level[order], return_index=True)
        chosen[decided] = begun[order[which]]
        content = np.column_stack([level, hashes])
        kept = np.unique(content, axis=0, return_index=True)[1]
        kept = np.sort(kept[(chosen[level[kept]] < 0) & ~over[kept]])
        kept = kept[np.arange(len(kept)) - np.searchsorted(level[kept], level[kept]) < WIDTH]
        if not len(kept):
            break
        nodes, level, begun = _take(nodes, kept), level[kept], begun[kept]
    return chosen


def _take(tree: Any, rows: Int[np.ndarray, " K"]) -> Any:
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def _put(old: np.ndarray, rows: Int[np.ndarray, " K"], new: np.ndarray) -> np.ndarray:
    old = np.array(old)
    old[rows] = new
    return old


@functools.partial(jax.jit, static_argnums=0)
def _looks(env: BabyAI, params: Any, states: BabyAIState, known: jax.Array, reached: jax.Array) -> jax.Array:
    """Which episodes go on without the agent knowing enough."""
    return jax.vmap(lambda *row: ~env.is_done(row[0], params) & ~_informed(*row))(states, known, reached)


@jax.jit
def _believed(params: Any, states: BabyAIState, known: jax.Array) -> BabyAIState:
    """The situations if all unknown cells were empty; `params` are not needed, but `in_batches` gives them."""
    del params
    world = states.world
    place = jnp.maximum(world.places, 0).astype(jnp.int32)
    seen = (world.places >= 0) & jnp.take_along_axis(known.reshape(len(known), -1), place, axis=1)
    places = jnp.where(seen, world.places, NOTHING)
    cells = jnp.where(known, world.cells, jnp.int8(EMPTY))
    return states.replace(world=world.replace(cells=cells, places=places))


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


@jax.jit
def _reachable(params: Any, states: BabyAIState) -> Bool[Array, "K S"]:
    del params
    return jax.vmap(lambda state: _reached(state.world))(states)


@jax.jit
def _shown(params: Any, states: BabyAIState) -> Bool[Array, "K H W"]:
    """The cells of the grid that the view shows."""
    del params

    def one(state: BabyAIState) -> Bool[Array, "H W"]:
        world: World = state.world
        rows, columns = cells_of(world)
        inside = (rows >= 0) & (rows < world.cells.shape[0]) & (columns >= 0) & (columns < world.cells.shape[1])
        empty = jnp.zeros(world.cells.shape, bool)
        place = jnp.where(inside, rows, NOTHING)
        return empty.at[place, columns].max(inside & (state.view != UNSEEN), mode="drop", wrap_negative_indices=False)

    return jax.vmap(one)(states)
