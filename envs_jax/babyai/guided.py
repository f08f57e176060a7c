"""Plans for levels that are too large for a search of all situations: of each depth only the nearest ones are kept.

How near a situation is, is estimated from the number of clauses that are left and the way to what the next one is
about, where a locked door is passed with a key only. The estimate decides nothing but the order; every plan is one that
the environment has solved.

Shapes: `N` levels, `K` situations, `S` object slots, `C` clauses, `P` places of the grid, `A` action ids.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int, Int8, Int32

from envs_jax.babyai import macros
from envs_jax.babyai.codes import (
    AFTER,
    ANY,
    BOX,
    CLAUSES,
    COLORS,
    KEY,
    LOCKED_DOOR,
    NO_VERB,
    OBJECT,
    OPEN_DOOR,
    PICK_UP,
    PUT_NEXT,
    WALL,
    color_of,
    form_of,
)
from envs_jax.babyai.env import BabyAI, PrimitiveBabyAI
from envs_jax.babyai.levels import Shape, Start, decode
from envs_jax.babyai.search import Plan, shortest_plans
from envs_jax.babyai.state import BabyAIState, Mission, Progress, World

WIDTH = 24
"""Situations of a level that each depth keeps."""

_CLAUSE = 1000.0
"""Steps that a clause counts: more than any way."""

_OBSTACLE = 5.0
"""Steps that an object in the way counts."""

_CARRY = 20.0
"""Steps that count for what has to be picked up first."""


def guided_plans(
    env: BabyAI,
    params: Any,
    levels: Int8[np.ndarray, "N H W"],
    rounds: int,
    *,
    width: int = WIDTH,
    first: Int32[np.ndarray, "N F"] | None = None,
) -> list[Plan]:
    """Returns a short plan for each level, within `rounds` actions, which is not proven to be a shortest one.

    Of each depth `width` situations are kept. Where no plan is found that picks up nothing but keys and what the
    mission names, all actions are tried. `first` is as in `search.shortest_plans`.
    """
    careful = None  # ids of primitive actions do not say what is picked up
    if not isinstance(env, PrimitiveBabyAI):
        careful = np.stack([careful_actions(level, env.shape) for level in levels])
    distances = Distances.measure(levels, env.shape)
    find = functools.partial(shortest_plans, env, params, rounds=rounds)
    plans = find(levels, usable=careful, first=first, keep=functools.partial(_nearest, distances, width))
    left = np.flatnonzero([plan.actions is None for plan in plans])
    if len(left):
        some_first = None if first is None else first[left]
        again = find(levels[left], first=some_first, keep=functools.partial(_nearest, distances.of(left), width))
        for number, plan in zip(left, again):
            plans[number] = plan
    return plans


def careful_actions(level: Int8[np.ndarray, "H W"], shape: Shape) -> Bool[np.ndarray, " A"]:
    """Returns the actions that pick up only keys and what the mission asks for, and drop only where it does."""
    mission = _decode(level, shape).mission
    wanted = mission.described[np.isin(mission.verb, (PICK_UP, PUT_NEXT)), 0, :2]
    usable = np.ones(macros.STARTS[-1], bool)
    usable[macros.DROP_IT] = len(wanted) > 0
    for name in range((BOX + 1) * COLORS):
        fits = (wanted == ANY) | (wanted == (name // COLORS, name % COLORS))
        first = macros.STARTS[macros.PICK] + name * macros.NUMBERS
        usable[first : first + macros.NUMBERS] = name // COLORS == KEY or fits.all(axis=1).any()
    return usable


class Distances(NamedTuple):
    """Estimates of how far situations of given levels are from their goal, in steps."""

    ways: Float[np.ndarray, "N 2 S P"]
    """Steps from a place to the first place of an object: with locked doors as walls, and as doors."""
    keys: Bool[np.ndarray, "N S"]
    """Objects that open a locked door."""
    from_keys: Float[np.ndarray, "N S S"]
    """Steps from the first place of a key to that of an object; infinite from what is no key."""

    @classmethod
    def measure(cls, levels: Int8[np.ndarray, "N H W"], shape: Shape) -> "Distances":
        """Measures the ways of levels."""
        worlds = [_decode(level, shape).world for level in levels]
        ways, keys = np.stack([_ways(world) for world in worlds]), np.stack([_keys_of_doors(world) for world in worlds])
        places = np.stack([_places(world) for world in worlds])
        with_key = np.take_along_axis(ways[:, 1], np.maximum(places, 0)[:, None], axis=2).swapaxes(1, 2)
        return cls(ways, keys, np.where((keys & (places >= 0))[:, :, None], with_key, np.inf))

    def of(self, chosen: Int[np.ndarray, " M"]) -> "Distances":
        """Returns those of some levels."""
        return Distances(self.ways[chosen], self.keys[chosen], self.from_keys[chosen])

    def __call__(self, states: BabyAIState, level: Int[np.ndarray, " K"]) -> Float[np.ndarray, " K"]:
        """Returns the estimate of each situation; `states` have NumPy arrays, `level` says of which level each is."""
        world, mission, progress = states.world, states.mission, states.progress
        slots = np.arange(world.slot_cells.shape[1])
        here = world.y * world.cells.shape[2] + world.x
        closed, opened = (self.ways[level, variant, :, here] for variant in (0, 1))
        held = world.carrying[:, None] == slots
        locked = form_of(world.cells.astype(int)) == LOCKED_DOOR
        free = (held & self.keys[level]).any(axis=1) | ~locked.any(axis=(1, 2))
        with_key = np.full(closed.shape, np.inf, np.float32)
        for key in np.flatnonzero(self.keys.any(axis=0)):
            with_key = np.minimum(with_key, closed[:, [key]] + self.from_keys[level, key] + _CARRY)
        steps = np.where(free[:, None], opened, np.minimum(closed, with_key))

        left, now = _clauses(mission, progress)
        tracked = (progress.tracked[..., slots // 32] >> (slots % 32).astype(np.uint32) & 1).astype(bool)
        put = mission.verb == PUT_NEXT
        ready = put & (tracked[:, :, 0] & held[:, None]).any(axis=2)
        aims = np.where(ready[..., None], tracked[:, :, 1], tracked[:, :, 0])
        nearest = np.where(aims, steps[:, None], np.inf).min(axis=2) + _CARRY * (put & ~ready)
        next_clause = np.where(now, np.minimum(nearest, _CLAUSE / 2), np.inf).min(axis=1)
        return _CLAUSE * left + np.minimum(next_clause, _CLAUSE / 2)


def _nearest(
    distances: Distances, width: int, states: BabyAIState, level: Int[np.ndarray, " K"]
) -> Bool[np.ndarray, " K"]:
    """Which situations are among the `width` nearest ones of their level."""
    order = np.lexsort((distances(states, level), level))
    starts = np.searchsorted(level[order], level[order])
    kept = np.zeros(len(level), bool)
    kept[order[np.arange(len(level)) - starts < width]] = True
    return kept


def _clauses(mission: Mission, progress: Progress) -> tuple[Int[np.ndarray, " K"], Bool[np.ndarray, "K C"]]:
    """How many clauses are left, and which of them can be fulfilled now."""
    open_clauses = (mission.verb != NO_VERB) & ~progress.done
    first = (mission.order == AFTER).astype(int)
    part = np.where(progress.first_done, 1 - first, first)
    now = open_clauses & (np.arange(CLAUSES) // 2 == part[:, None])
    return np.where(progress.first_done, now.sum(axis=1), open_clauses.sum(axis=1)), now


def _ways(world: World) -> Float[np.ndarray, "2 S P"]:
    """Steps from each place to the first place of each object: with locked doors as walls, and as doors."""
    from scipy.sparse import coo_array, csgraph  # slow

    cells = world.cells.astype(int)
    form = form_of(cells)
    entering = np.where(cells >= OBJECT, np.where(form >= OPEN_DOOR, 1, _OBSTACLE), np.where(cells == WALL, np.inf, 1))
    index = np.arange(cells.size).reshape(cells.shape)
    pairs = [(index[:, :-1], index[:, 1:]), (index[:-1], index[1:])]
    source, target = (
        np.concatenate([side.ravel() for pair in pairs for side in order(pair)]) for order in (tuple, reversed)
    )
    places = _places(world)
    slots = np.flatnonzero(places >= 0)
    ways = np.full((2, len(places), cells.size), np.inf, np.float32)
    for variant, cost in enumerate((np.where(form == LOCKED_DOOR, np.inf, entering), entering)):
        steps = cost.ravel()[target]
        passable = np.isfinite(steps)
        graph = coo_array((steps[passable], (source[passable], target[passable])), shape=(cells.size,) * 2).tocsr()
        ways[variant, slots] = csgraph.dijkstra(graph, indices=places[slots])
    return ways


def _places(world: World) -> Int[np.ndarray, " S"]:
    """Where the objects are; a hidden one is where its box is."""
    places = np.array(world.places, int)
    boxes = np.flatnonzero(world.hidden >= 0)
    places[world.hidden[boxes]] = places[boxes]
    return places


def _keys_of_doors(world: World) -> Bool[np.ndarray, " S"]:
    """Which objects are keys of a locked door."""
    cells = world.slot_cells.astype(int)
    doors = color_of(cells[form_of(cells) == LOCKED_DOOR])
    return (cells >= OBJECT) & (form_of(cells) == KEY) & np.isin(color_of(cells), doors)


_decode_one = jax.jit(decode, static_argnums=1)


def _decode(level: Int8[np.ndarray, "H W"], shape: Shape) -> Start:
    return jax.device_get(_decode_one(jnp.asarray(level), shape))
