"""Missions: which objects a description names, and whether an action fulfills the mission (MiniGrid's verifier).

Shapes: `S` object slots, `C` clauses, `P` = 1 + the number of `codes.PLACES`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32, UInt32

from envs_jax.babyai.bits import pack
from envs_jax.babyai.codes import (
    ANY,
    BEFORE,
    COLORS,
    DIRECTIONS,
    DOOR,
    DROP,
    GO_TO,
    GRAY,
    NO_VERB,
    OBJECT,
    OPEN_DOOR,
    PICKUP,
    PLACES,
    PUT_NEXT,
    SINGLE,
    TOGGLE,
    color_of,
    form_of,
    type_of,
)
from envs_jax.babyai.state import NOTHING, Mission, Progress, World
from envs_jax.babyai.view import ahead_of

CONTINUE, SUCCESS, FAILURE = range(3)
"""Results of a check."""

SLOT_WORDS = 2
"""Words of a set of slots; comparing sets is the larger part of a check."""

_COLOR_BIT = DOOR + 1
_PLACE_BIT = _COLOR_BIT + COLORS
_ON_GRID_BIT = _PLACE_BIT + len(PLACES)
_ON_GRID = 1 << _ON_GRID_BIT


def traits(world: World, room_size: Int[Array, ""]) -> Int32[Array, " S"]:
    """Returns what a description can say of each object, as bits: its type, its color, and `PLACES`.

    A place is a half-plane of the room of the agent, walls included, seen from where the agent is. Objects that are not
    on the grid have no bit.
    """
    there = (world.places != NOTHING) & (world.slot_cells >= OBJECT)
    cells = jnp.where(there, world.slot_cells.astype(jnp.int32), OBJECT)
    rows, columns = jnp.divmod(jnp.where(there, world.places.astype(jnp.int32), 0), world.cells.shape[1])
    right, forward = jnp.asarray(DIRECTIONS)[(world.heading + 1) % 4], jnp.asarray(DIRECTIONS)[world.heading]
    to_right = (columns - world.x) * right[0] + (rows - world.y) * right[1]
    ahead = (columns - world.x) * forward[0] + (rows - world.y) * forward[1]
    left_of_room = world.x // (room_size - 1) * (room_size - 1)
    top_of_room = world.y // (room_size - 1) * (room_size - 1)
    in_room = (columns >= left_of_room) & (columns < left_of_room + room_size)
    in_room &= (rows >= top_of_room) & (rows < top_of_room + room_size)
    # Bits instead of a row for each place: XLA's CPU compiler makes no vector code of what a fusion concatenates.
    bits = 1 << type_of(cells) | 1 << _COLOR_BIT + color_of(cells) | _ON_GRID
    for place, is_there in enumerate((to_right < 0, to_right > 0, ahead > 0, ahead < 0)):
        bits |= jnp.where(in_room & is_there, 1 << _PLACE_BIT + place, 0)
    return jnp.where(there, bits, 0)


def at_places(bits: Int32[Array, " S"]) -> Bool[Array, "P S"]:
    """Returns from `traits` which objects are on the grid, and which of them are in each of `PLACES`."""
    return bits & (1 << np.array([_ON_GRID_BIT, *range(_PLACE_BIT, _ON_GRID_BIT)], np.int32))[:, None] != 0


def fitting(bits: Int32[Array, " S"], described: Int[Array, "*K 3"]) -> Bool[Array, "*K S"]:
    """Returns which objects of these `traits` fit descriptions (type, color, place)."""
    needed = jnp.int32(_ON_GRID)
    for part, first in enumerate((0, _COLOR_BIT, _PLACE_BIT)):
        value = described[..., part].astype(jnp.int32)
        needed |= jnp.where(value == ANY, 0, 1 << first + value)
    return bits & needed[..., None] == needed[..., None]


def start(world: World, room_size: Int[Array, ""], mission: Mission) -> Progress:
    """Fixes the objects of a mission at the start of an episode."""
    wanted = (mission.verb != NO_VERB)[:, None] & (np.arange(2) < 1 + (mission.verb == PUT_NEXT)[:, None])
    tracked = pack(fitting(traits(world, room_size), mission.described) & wanted[..., None], SLOT_WORDS)
    count = jnp.sum(jax.lax.population_count(tracked), axis=-1)
    # Walls are gray things without a type of their own in missions.
    kind, color = mission.described[..., 0], mission.described[..., 1]
    walls = (kind == ANY) & ((color == ANY) | (color == GRAY))
    return Progress(
        tracked=tracked,
        several=wanted & (walls | (count > 1)),
        done=jnp.zeros(mission.verb.shape, bool),
        first_done=jnp.bool_(False),
        carried_before=jnp.full(mission.verb.shape, NOTHING, jnp.int32),
    )


def _single(slot: Int[Array, "*K"]) -> UInt32[Array, "*K 2"]:
    """Returns the set of one slot; empty if it is negative."""
    word = jnp.uint32(1) << (slot % 32).astype(jnp.uint32)
    return jnp.where(np.arange(2) == (slot // 32)[..., None], word[..., None], 0).astype(jnp.uint32)


def check(
    world: World, mission: Mission, progress: Progress, action: Int[Array, ""] | None, *, upstream: bool = True
) -> tuple[Progress, Int[Array, ""]]:
    """Returns the progress and the result after a primitive action, which has been taken in `world`.

    None stands for any action but to pick up, drop or toggle, after which less is to be checked. With `upstream`, as in
    MiniGrid, the action that fulfills the first part can fail the second: nobody can open two doors in a strict order.
    """
    results = _check_clauses(world, mission, progress, action)
    paired = mission.verb.reshape(2, 2)[:, 1] != NO_VERB
    first = jnp.where((mission.order == SINGLE) | (mission.order == BEFORE), 0, 1)

    # A pair keeps what it has fulfilled, and never fails.
    done = progress.done.reshape(2, 2)
    clause_results = results.reshape(2, 2)
    fulfilled = done | (clause_results == SUCCESS)
    pair_result = jnp.where(jnp.all(fulfilled, axis=1), SUCCESS, CONTINUE)
    part_results = jnp.where(paired, pair_result, clause_results[:, 0])

    joined = mission.order != SINGLE
    first_done = joined & (progress.first_done | (part_results[first] == SUCCESS))
    # The second part is checked from the action on that fulfills the first one.
    result = jnp.where(first_done, part_results[1 - first], part_results[first])
    if not upstream:
        just_now = first_done & ~progress.first_done
        result = jnp.where(just_now & (result == FAILURE), CONTINUE, result)
    part_checked = jnp.where(np.arange(2) == first, ~progress.first_done, first_done)
    checked = part_checked[:, None] & ~(paired[:, None] & done)
    updated = Progress(
        tracked=progress.tracked,
        several=progress.several,
        done=jnp.where(checked & paired[:, None], fulfilled, done).reshape(-1),
        first_done=first_done,
        carried_before=jnp.where(checked.reshape(-1), world.carrying, progress.carried_before),
    )
    return updated, result


def _check_clauses(
    world: World, mission: Mission, progress: Progress, action: Int[Array, ""] | None
) -> Int[Array, " C"]:
    """Returns the result of every clause."""
    width = world.cells.shape[1]
    x, y = ahead_of(world)
    place = y * width + x
    first, second = progress.tracked[:, 0], progress.tracked[:, 1]
    before, now = progress.carried_before, world.carrying

    def among(tracked: UInt32[Array, "C 2"], found: UInt32[Array, "*C 2"]) -> Bool[Array, " C"]:
        return jnp.any(tracked & found != 0, axis=-1)

    went = among(first, pack(world.known_places == place, SLOT_WORDS))

    verb = mission.verb.astype(jnp.int32)
    if action is None:
        return jnp.where(went & (verb == GO_TO), SUCCESS, CONTINUE)

    toggled = action == TOGGLE
    form = form_of(world.cells[y, x].astype(jnp.int32))
    opened = toggled & (form == OPEN_DOOR) & among(first, pack(world.places == place, SLOT_WORDS))
    wrong_door = toggled & (form >= OPEN_DOOR)

    lifted = action == PICKUP
    picked = lifted & (before < 0) & among(first, _single(now))
    holding = lifted & (now >= 0)

    # What was carried before and is not now has been dropped straight ahead, where walls are not: no row ends there.
    known = world.known_places
    near = (known == place - 1) | (known == place + 1) | (known == place - width) | (known == place + width)
    dropped = (action == DROP) & (before >= 0) & (now < 0)
    put = dropped & among(first, _single(before)) & among(second, pack(near, SLOT_WORDS))

    nothing = jnp.zeros_like(went)
    wrong_door, holding = (jnp.broadcast_to(flag, went.shape) for flag in (wrong_door, holding))
    clauses = np.arange(mission.verb.shape[0])
    success = jnp.stack([nothing, went, opened, picked, put])[verb, clauses]
    failure = jnp.stack([nothing, nothing, wrong_door, holding, holding])[verb, clauses] & mission.strict
    return jnp.where(success, SUCCESS, jnp.where(failure, FAILURE, CONTINUE))
