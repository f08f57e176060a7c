"""AgentGym's actions: their names and ids, which of them are listed, and the primitive actions that each stands for.

Shapes: `M` objects in view, in the order of their distance; `D` longest path, see `planner`.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8, Int32, UInt32

from envs_jax.babyai import planner
from envs_jax.babyai.bits import nth_number, pack
from envs_jax.babyai.codes import (
    BOX,
    CLOSED_DOOR,
    COLORS,
    DROP,
    FORWARD,
    KEY,
    LEFT,
    LOCKED_DOOR,
    NAMES,
    OBJECT,
    OPEN_DOOR,
    PICKUP,
    RIGHT,
    TOGGLE,
    WALL,
)
from envs_jax.babyai.state import Surroundings, World
from envs_jax.babyai.view import MIDDLE, SIZE

NUMBERS = 9
"""Objects of one name that actions can tell apart."""

TURN_LEFT, TURN_RIGHT, MOVE_FORWARD, DROP_IT, TOGGLE_IT, CHECK = range(6)
SIMPLE_NAMES = ("turn left", "turn right", "move forward", "drop", "toggle", "check available actions")

VERBS = ("pickup ", "go to ", "go through ", "toggle and go through ")
PICK, GO, THROUGH, TOGGLE_THROUGH = range(4)
_FIRST_NAME = (KEY, KEY, OPEN_DOOR, CLOSED_DOOR)
_LAST_NAME = (BOX, LOCKED_DOOR, CLOSED_DOOR, LOCKED_DOOR)


def _block_starts() -> tuple[int, ...]:
    starts = [len(SIMPLE_NAMES)]
    for first, last in zip(_FIRST_NAME, _LAST_NAME):
        starts.append(starts[-1] + (last + 1 - first) * COLORS * NUMBERS)
    return tuple(starts)


STARTS = _block_starts()
"""First id of each verb's actions, and their end; an id is `start + (name - first name) * NUMBERS + number - 1`."""

UNKNOWN, NO_ACTION = -1, -2
"""Ids of an action that names nothing, and of an empty one."""


def action_names() -> tuple[str, ...]:
    """Returns the names of all actions by id."""
    names = list(SIMPLE_NAMES)
    for verb, first, last in zip(VERBS, _FIRST_NAME, _LAST_NAME):
        objects = NAMES[first * COLORS : (last + 1) * COLORS]
        names += [f"{verb}{name} {number}" for name in objects for number in range(1, NUMBERS + 1)]
    return tuple(names)


def _by_distance() -> np.ndarray:
    rows, columns = np.divmod(np.arange(SIZE * SIZE), SIZE)
    distance = np.abs(SIZE - 1 - rows) + np.abs(columns - MIDDLE)
    order = np.argsort(distance, kind="stable")
    return order[distance[order] > 0]


ORDER = _by_distance()
"""Cells of a view but the agent's, nearest first, in the order in which AgentGym sorts objects."""


def _pack_position(cell: Int[np.ndarray, "*K"]) -> Int[np.ndarray, "*K"]:
    """Steps ahead and to the right, and the number in `planner`'s sets, of cells of a view, in one integer each."""
    front, side = SIZE - 1 - cell // SIZE, cell % SIZE
    return front | side << 3 | ((front + 1) * planner.ROWS + side) << 6


_POSITIONS, _NO_POSITION = _pack_position(ORDER).astype(np.int32), int(_pack_position(np.array(0)))
"""Of the cells in `ORDER`, and where there is no object. One look-up costs less than divisions."""


def survey(view: Int8[Array, "7 7"], heading: Int[Array, ""], most: int) -> Surroundings:
    """Describes a view that holds at most `most` objects; farther ones are left out."""
    free = planner.free_cells(view, heading)
    faced_cells, entered_cells = planner.reachable(free)
    cells = view.reshape(-1)[ORDER].astype(jnp.int32)
    is_object, rank = cells >= OBJECT, jnp.arange(most)
    exists = rank < jnp.sum(is_object)
    nearest_first = nth_number(jnp.broadcast_to(pack(is_object, 2), (most, 2)), rank)
    name = jnp.where(exists, cells[nearest_first] - OBJECT, -1)
    position = jnp.where(exists, jnp.asarray(_POSITIONS)[nearest_first], _NO_POSITION)
    front, side, bit = position & 7, (position >> 3 & 7) - MIDDLE, position >> 6

    def among(cells: UInt32[Array, "2"]) -> Bool[Array, " M"]:
        word = jnp.where(bit < 32, cells[0], cells[1])
        return exists & (word >> (bit & 31).astype(jnp.uint32) & 1).astype(bool)

    faced, entered = among(faced_cells), among(entered_cells)
    # Sums over the first axis and small integers, because both make better vector code on a CPU.
    names = name.astype(jnp.int8)
    same = (names[:, None] == names) & np.tri(most, dtype=bool).T

    def count(rows: Bool[Array, "M M"]) -> Int32[Array, " M"]:
        return jnp.sum(rows, axis=0, dtype=jnp.int8).astype(jnp.int32)

    ahead = view[: SIZE - 1, MIDDLE][::-1].astype(jnp.int32)
    is_box = (ahead >= OBJECT + BOX * COLORS) & (ahead < OBJECT + (BOX + 1) * COLORS)
    stops = is_box | (ahead == WALL)
    nearest = jnp.argmax(stops)
    return Surroundings(
        name=name,
        front=front,
        side=side,
        number=count(same),
        faced=faced,
        entered=entered,
        faced_number=count(same & faced[:, None]),
        anything=jnp.any(cells >= WALL),
        barrier=jnp.where(jnp.any(stops), nearest + 1, 0),
        barrier_is_box=is_box[nearest],
        blocked=(ahead[0] == WALL) | (ahead[0] >= OBJECT) & (ahead[0] < OBJECT + OPEN_DOOR * COLORS),
        free=free,
    )


class Listed(NamedTuple):
    """Which actions are listed: of the agent itself, and for each object in view.

    `toggle` is true of the closed or locked door that the agent faces and could open, and of a box that hides a thing.
    """

    forward: Bool[Array, ""]
    drop: Bool[Array, ""]
    pickup: Bool[Array, " M"]
    through: Bool[Array, " M"]
    toggle_through: Bool[Array, " M"]
    toggle: Bool[Array, " M"]
    go: Bool[Array, " M"]


def listed(world: World, seen: Surroundings, *, upstream: bool) -> Listed:
    """Returns which actions AgentGym lists; without `upstream` a box that hides something can be opened, too."""
    form = seen.name // COLORS
    in_hand = jnp.where(world.carrying >= 0, world.slot_cells[world.carrying].astype(jnp.int32) - OBJECT, -1)
    opened = (form == CLOSED_DOOR) | (form == LOCKED_DOOR) & (in_hand == seen.name % COLORS)
    ahead = (seen.front == 1) & (seen.side == 0)
    openable = opened if upstream else opened | (form == BOX) & _hides_ahead(world)
    return Listed(
        forward=(seen.barrier == 0) | (seen.barrier > 1),
        drop=(world.carrying >= 0) & ~seen.blocked,
        pickup=seen.faced & (form <= BOX) & (world.carrying < 0),
        through=seen.entered & (form == OPEN_DOOR),
        toggle_through=seen.faced & opened,
        toggle=openable & ahead,
        go=seen.faced,
    )


def _hides_ahead(world: World) -> Bool[Array, ""]:
    """Whether something is hidden in the cell that the agent faces."""
    x = world.x + jnp.array([1, 0, -1, 0])[world.heading]
    y = world.y + jnp.array([0, 1, 0, -1])[world.heading]
    return jnp.any((world.hidden >= 0) & (world.places == y * world.cells.shape[1] + x))


class Macro(NamedTuple):
    """An action that was asked for: whether it is listed, and its primitive actions."""

    possible: Bool[Array, ""]
    actions: Int8[Array, " D"]
    length: Int[Array, ""]


LENGTH = planner.MAX_DEPTH + 3
"""Most primitive actions of one action."""


def resolve(world: World, seen: Surroundings, action: Int[Array, ""], *, upstream: bool) -> Macro:
    """Finds the primitive actions of an action id; `upstream` is that of `listed`."""
    can = listed(world, seen, upstream=upstream)
    verb, name, number = split(action)
    candidates = jnp.stack([can.pickup, can.go, can.through, can.toggle_through])[verb]
    # Doors are counted by what is in view, the rest by what can be reached.
    numbers = jnp.where(verb >= THROUGH, seen.number, seen.faced_number)
    wanted = candidates & (seen.name == name) & (numbers == number) & (verb >= 0)
    target = jnp.argmax(wanted)
    bit = (seen.front[target] + 1) * planner.ROWS + seen.side[target] + MIDDLE
    cell = jnp.where(jnp.any(wanted) & (np.arange(2) == bit // 32), jnp.uint32(1) << (bit % 32).astype(jnp.uint32), 0)
    steps, length = planner.path(seen.free, cell.astype(jnp.uint32), verb == THROUGH)
    steps = jnp.pad(steps, (0, LENGTH - len(steps)))
    ends = jnp.array([PICKUP, 0, 0, TOGGLE], jnp.int8)[verb]
    more = jnp.array([1, 0, 0, 2])[verb]
    steps = jnp.where(more > 0, steps.at[length].set(ends), steps)
    steps = jnp.where(more > 1, steps.at[length + 1].set(FORWARD), steps)
    alone = jnp.array([LEFT, RIGHT, FORWARD, DROP, TOGGLE, 0], jnp.int8)
    simple = verb < 0
    simple_possible = jnp.stack(
        [jnp.bool_(True), jnp.bool_(True), can.forward, can.drop, jnp.any(can.toggle), jnp.bool_(True)]
    )
    chosen = jnp.clip(action, 0, CHECK)
    known = (action >= 0) & (action <= CHECK)
    return Macro(
        possible=jnp.where(simple, known & simple_possible[chosen], jnp.any(wanted)),
        actions=jnp.where(simple, jnp.zeros_like(steps).at[0].set(alone[chosen]), steps),
        length=jnp.where(simple, (known & (action != CHECK)).astype(jnp.int32), length + more),
    )


def split(action: Int[Array, ""]) -> tuple[Int[Array, ""], Int[Array, ""], Int[Array, ""]]:
    """Returns (verb, name, number) of an action id; the verb is -1 for a simple or unknown action."""
    starts, first = np.array(STARTS), jnp.array(_FIRST_NAME)
    verb = jnp.where(action < STARTS[-1], jnp.sum(action >= starts) - 1, -1)
    offset = action - jnp.asarray(starts)[jnp.maximum(verb, 0)]
    name = offset // NUMBERS + first[jnp.maximum(verb, 0)] * COLORS
    return verb, jnp.where(verb >= 0, name, -1), jnp.where(verb >= 0, offset % NUMBERS + 1, 0)


def listed_ids(can: Listed, seen: Surroundings) -> Int32[Array, " A"]:
    """Returns the ids of the listed actions in their order, without `CHECK`, with `UNKNOWN` between them.

    `A` is 4 + 4 M. The tenth object of a name, and later ones, are left out.
    """

    def ids(verb: int | Int[Array, " M"], number: Int[Array, " M"]) -> Int32[Array, " M"]:
        first = jnp.asarray(np.array(STARTS[:-1]) - np.array(_FIRST_NAME) * COLORS * NUMBERS)[verb]
        return jnp.where(number <= NUMBERS, first + seen.name * NUMBERS + number - 1, UNKNOWN)

    def shown(condition: Bool[Array, "*K"], action: Int[Array, "*K"] | int) -> Int32[Array, "*K"]:
        return jnp.where(condition, action, UNKNOWN).astype(jnp.int32)

    door_verb = jnp.where(seen.name // COLORS == OPEN_DOOR, THROUGH, TOGGLE_THROUGH)
    doors = shown(can.through | can.toggle_through, ids(door_verb, seen.number))
    # A choice by the column, because what is stacked makes no vector code on a CPU.
    doors = jnp.where(np.arange(2) == 0, doors[:, None], shown(can.toggle, TOGGLE_IT)[:, None])
    parts = [
        jnp.array([TURN_LEFT, TURN_RIGHT], jnp.int32),
        shown(can.forward, MOVE_FORWARD)[None],
        shown(can.pickup, ids(PICK, seen.faced_number)),
        shown(can.drop, DROP_IT)[None],
        doors.reshape(-1),
        shown(can.go, ids(GO, seen.faced_number)),
    ]
    return jnp.concatenate(parts)
