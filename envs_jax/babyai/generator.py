"""Generates the forty levels of BabyAI as a compiled function of a key.

One program makes all levels: it reads the recipe of the level from a table. A level is made as in MiniGrid 2.3.1, with
the same distribution:

1. Walls, and doors (`rooms.build_doors`). Random doors connect all rooms of a maze. They do not depend on what is in
   the rooms, so they come first; where MiniGrid places the agent earlier, it may face them.
2. Things in the order of the recipe, and the agent before or after them. A place is uniform over the cells that are
   allowed, where MiniGrid draws cells until one is.
3. The mission (`instructions`).
4. Checks. A layout that fails is drawn again with another key, at most `MAX_TRIES` times.

By default every level can be solved, as intended. `upstream=True` keeps slips of MiniGrid: in levels 7 and 24, the key
can lie in the room that it opens, and the locked room has as many objects as the others; level 27 has a shorter limit
than its source says. In level 20, all objects of the mission can be fenced in by others, which the agent must not take;
these layouts are rejected by default. All other levels can be solved, because everything but walls and doors can be
moved, and a locked room has one door, whose key lies outside; in level 16 by the rules of `mode="intended"` only (see
`mission.check`).

Two things are never kept. In missions of levels 35 to 37, MiniGrid still avoids the locked room of a layout that it
rejected. And it never returns for one in a thousand layouts of level 35, where the agent's room has no cell to start
from.

Shapes: `K` things, `S` slots: of the things, then of the doors.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8, Int32, Key

from envs_jax.babyai import levels, tables
from envs_jax.babyai.bits import nth, nth_bit
from envs_jax.babyai.codes import COLORS, EMPTY, HIDING, KEY, NO_VERB, OBJECT, PUT_NEXT, WALL, color_of
from envs_jax.babyai.instructions import can_be_given, draw_goal, draw_sentence
from envs_jax.babyai.mission import fitting, traits
from envs_jax.babyai.parts import ALL, INSIDE, LOCKED, NOT_ALL, OUTSIDE, ROOMS, TARGET
from envs_jax.babyai.recipes import NAMES
from envs_jax.babyai.rooms import (
    WALLS,
    Doors,
    Draws,
    any_bit,
    bits_at,
    bits_of,
    build_doors,
    flood,
    whole,
)
from envs_jax.babyai.state import NOTHING, Mission, World
from envs_jax.babyai.tables import NO_KEY, Row, Table, shape_of
from envs_jax.batching import on_rows
from envs_jax.errors import BadValue

__all__ = ["MAX_TRIES", "NAMES", "make_generator", "shape_of"]

MAX_TRIES = 128
"""Level 11 accepts the fewest layouts, 25 %: with 32 tries, one of 11,000 of its levels would fail."""

RETRIED = 8
"""One row of so many is tried again at a time, or one of them more often."""

_UNIFORMS = 96
"""More than what a level needs apart from its things."""


class Layout(NamedTuple):
    """A level in its parts."""

    walls: Int32[Array, " H"]
    x: Int32[Array, ""]
    y: Int32[Array, ""]
    heading: Int32[Array, ""]
    places: Int32[Array, " S"]
    codes: Int32[Array, " S"]
    mission: Mission
    carried: Int32[Array, ""]


def make_generator(
    numbers: tuple[int, ...], shape: levels.Shape, *, upstream: bool = False
) -> Callable[[Key[Array, ""]], Int8[Array, "H W"]]:
    """Returns a function that makes a level of a key, whose number is uniform among `numbers`.

    If no layout is accepted, the number in the level's header is 0. `upstream` keeps MiniGrid's slips, see the module.
    Raises a `ValueError` if a number is not of a level, or the levels do not fit the shape.
    """
    numbers = tables.check_numbers(numbers)
    own = shape_of(numbers)
    if not shape.holds(own):
        raise BadValue(f"levels {numbers} need {own}; expected a shape that holds it, not {shape}", "shape", shape)
    return _make_generator(numbers, own, shape, upstream)


# Kept, so that environments with the same levels are equal, see `TextEnvironment.__eq__`.
@lru_cache(maxsize=64)
def _make_generator(
    numbers: tuple[int, ...], own: levels.Shape, shape: levels.Shape, upstream: bool
) -> Callable[[Key[Array, ""]], Int8[Array, "H W"]]:
    table = tables.table_of(numbers, upstream)
    accepted_layouts = on_rows(partial(_accepted_layouts, table=table, size=own))

    def generate(key: Key[Array, ""]) -> Int8[Array, "H W"]:
        packed = table.look_up(jax.random.randint(jax.random.fold_in(key, 0), (), 0, len(table)))
        accepted, layout = accepted_layouts(key, packed)
        return _encode(table.unpack(packed), accepted, layout, own, shape)

    return generate


def _accepted_layouts(
    keys: Key[Array, " B"], packed: Int32[Array, "B R"], *, table: Table, size: levels.Shape
) -> tuple[Bool[Array, " B"], Layout]:
    """Draws a layout for each row of the table until it is accepted; returns whether it was.

    After a first try of all rows, each turn makes so many tries of those that are left: the next one of each row, or
    the next few where fewer rows are left. So few turns wait for a row that is rejected often. The try of a number
    depends on the key alone.
    """
    some = max(1, len(keys) // RETRIED)

    @jax.vmap
    def attempt(key: jax.Array, packed: jax.Array, tries: jax.Array) -> tuple[jax.Array, Layout]:
        uniforms = jax.random.uniform(jax.random.fold_in(key, tries + 1), (_UNIFORMS + 3 * table.things,))
        return _draw(table.unpack(packed), size, Draws(uniforms))

    def retry(carry: tuple[jax.Array, jax.Array, Layout]) -> tuple[jax.Array, jax.Array, Layout]:
        tries, accepted, layouts = carry
        is_open = ~accepted & (tries < MAX_TRIES)
        number = jnp.minimum(jnp.sum(is_open), some)
        left = jnp.nonzero(is_open, size=some, fill_value=0)[0]
        turn = jnp.arange(some)
        chosen, ahead = left[turn % number], turn // number
        good, found = attempt(keys[chosen], packed[chosen], tries[chosen] + ahead)
        good &= tries[chosen] + ahead < MAX_TRIES
        first_good = jnp.full(len(keys), some).at[chosen].min(jnp.where(good, turn, some))
        taken = jnp.where(first_good[chosen] == turn, chosen, len(keys))
        layouts = jax.tree.map(lambda old, new: old.at[taken].set(new, mode="drop"), layouts, found)
        return tries.at[chosen].add(1), accepted.at[taken].set(True, mode="drop"), layouts

    tries = jnp.zeros(len(keys), jnp.int32)
    accepted, layouts = attempt(keys, packed, tries)
    start = tries + 1, accepted, layouts
    _, accepted, layouts = jax.lax.while_loop(lambda carry: jnp.any(~carry[1] & (carry[0] < MAX_TRIES)), retry, start)
    return accepted, layouts


def _encode(
    row: Row, accepted: Bool[Array, ""], layout: Layout, size: levels.Shape, shape: levels.Shape
) -> Int8[Array, "H W"]:
    cells = jnp.where(bits_of(layout.walls, size.width), WALL, EMPTY).reshape(-1)
    where = jnp.where(layout.places == NOTHING, len(cells), layout.places)
    cells = cells.at[where].set(layout.codes, mode="drop").reshape(size.height, size.width)
    verbs = layout.mission.verb
    needed = jnp.sum(jnp.where(verbs == PUT_NEXT, 2, verbs != NO_VERB))
    rooms = jnp.sum(row.rooms >> np.arange(ROOMS * ROOMS) & 1)
    limit = jnp.where(row.limit > 0, row.limit, needed * row.room_size**2 * rooms)
    carried = jnp.where(row.carries, layout.places[layout.carried], NOTHING)
    header = {
        "number": jnp.where(accepted, row.number, 0),
        "x": layout.x,
        "y": layout.y,
        "heading": layout.heading,
        "room_size": row.room_size,
        "max_steps_hundreds": limit // 100,
        "max_steps_rest": limit % 100,
        "carried_x": jnp.where(row.carries, carried % size.width, NOTHING),
        "carried_y": jnp.where(row.carries, carried // size.width, NOTHING),
        "order": layout.mission.order,
    }
    return levels.encode(cells, header, layout.mission, shape)


def _draw(row: Row, size: levels.Shape, draws: Draws) -> tuple[Bool[Array, ""], Layout]:
    """Draws a layout; also returns whether it is accepted."""
    doors = build_doors(row, draws)
    placed = _place_all(row, doors, size, draws)
    door_rows = bits_at(size.height, doors.x, doors.y, doors.form > 0)
    walls = row.walls & ~door_rows & ~row.opened_last
    door_places = jnp.where(doors.form > 0, doors.y * size.width + doors.x, NOTHING)
    places = jnp.concatenate([placed.places, door_places])
    cells = OBJECT + jnp.concatenate([placed.pairs, doors.form * COLORS + doors.color])
    world = World(
        # Only the width is used.
        cells=jnp.zeros((size.height, size.width), jnp.int8),
        slot_cells=jnp.where(places == NOTHING, 0, cells),
        places=places,
        known_places=places,
        hidden=jnp.full_like(places, NOTHING),
        x=placed.x,
        y=placed.y,
        heading=placed.heading,
        carrying=jnp.int32(NOTHING),
        steps=jnp.int32(0),
    )

    goal, first = draw_goal(row, world, draws)
    bits = traits(world, row.room_size)
    locked = _in_rooms(doors.locked_room, places, row.room_size, size)
    sentence, complete = draw_sentence(row, world, bits, locked, draws)
    mission = jax.tree.map(
        lambda a, b, like: jnp.where(row.is_goal, a, b).astype(like.dtype), goal, sentence, Mission.empty()
    )
    fits = fitting(bits, mission.described) & (mission.verb != NO_VERB)[:, None, None]

    agent = bits_at(size.height, placed.x[None], placed.y[None], jnp.array([True]))
    reached = flood(agent, ~walls, ~walls & ~placed.objects)
    reached = (reached[places // size.width] >> places % size.width & 1) == 1
    all_reached = jnp.all(reached | (places == NOTHING) | jnp.append(row.things.late, np.zeros(WALLS, bool)))
    accepted = placed.complete & (row.is_goal | complete) & can_be_given(row, world, mission, fits)
    accepted &= (row.reach != ALL) | all_reached
    accepted &= (row.reach != NOT_ALL) | ~all_reached
    accepted &= (row.reach != TARGET) | jnp.any(fits[0, 0] & reached)

    key = color_of(cells[len(placed.places) + jnp.minimum(doors.locked_wall, WALLS - 1)])
    hiding = jnp.append(row.things.hides_key, np.zeros(WALLS, bool))
    codes = jnp.where(hiding, HIDING + color_of(cells) * COLORS + key, cells)
    return accepted, Layout(walls, placed.x, placed.y, placed.heading, places, codes, mission, first)


def _in_rooms(
    rooms: Int[Array, ""], places: Int[Array, " S"], room_size: Int[Array, ""], size: levels.Shape
) -> Bool[Array, " S"]:
    """Returns what is in the square of one of the rooms, walls included."""
    row, column = np.divmod(np.arange(ROOMS * ROOMS)[:, None], ROOMS)
    y, x = places // size.width - row * (room_size - 1), places % size.width - column * (room_size - 1)
    inside = (x >= 0) & (y >= 0) & (x < room_size) & (y < room_size)
    return jnp.any(inside & (rooms >> np.arange(ROOMS * ROOMS) & 1 == 1)[:, None], axis=0)


class Placed(NamedTuple):
    """The agent, and what is where; `objects` are those that are not late."""

    x: Int32[Array, ""]
    y: Int32[Array, ""]
    heading: Int32[Array, ""]
    places: Int32[Array, " K"]
    pairs: Int32[Array, " K"]
    objects: Int32[Array, " H"]
    complete: Bool[Array, ""]


def _place_all(row: Row, doors: Doors, size: levels.Shape, draws: Draws) -> Placed:
    """Places things and the agent."""
    things, rows, nothing = row.things, np.arange(size.height), jnp.zeros(size.height, jnp.int32)
    x, y, heading, first = _place_agent(row, doors, nothing, size, draws)
    x, y = jnp.where(row.agent_first, x, row.middle[0]), jnp.where(row.agent_first, y, row.middle[1])
    distance = jnp.abs(rows - y)
    near = jnp.where(distance == 0, 7 << x - 1, jnp.where(distance == 1, 1 << x, 0))
    locked = jnp.minimum(doors.locked_wall, WALLS - 1)
    beside = jnp.where(rows == doors.y[locked], 1 << doors.x[locked] - 1, 0)

    for_room, for_place, for_pair = draws.take(3, len(things.there))
    banned = jnp.where(things.locked == OUTSIDE, doors.locked_room, 0)
    allowed = things.rooms & ~jnp.where(things.locked == INSIDE, ~doors.locked_room, banned)
    wall = jnp.where(things.key_of == LOCKED, doors.locked_wall, things.key_of)
    active = things.there & (allowed != 0) & (wall != LOCKED)
    squares = _square(any_bit(allowed, for_room)[:, None], row.room_size, size.height)
    # MiniGrid places a late thing when the agent is elsewhere, in another room.
    squares &= ~row.walls & ~jnp.where(things.late[:, None], 0, near)
    squares = jnp.where(things.blocks[:, None], beside, squares)
    keys = KEY * COLORS + doors.color[jnp.minimum(wall, WALLS - 1)]
    pairs = jnp.where(things.key_of == NO_KEY, things.pairs, 1 << keys)

    def place(carry: tuple[jax.Array, ...], given: tuple[jax.Array, ...]) -> tuple[tuple, tuple]:
        objects, late, present, complete = carry
        active, is_late, unique, square, pairs, for_place, for_pair = given
        free = square & ~objects
        counts = jax.lax.population_count(free)
        total = jnp.sum(counts)
        y, rank = nth(counts, whole(for_place, total))
        x = nth_bit(free[y], rank)
        pair = any_bit(pairs & ~jnp.where(unique, present, 0), for_pair)
        cell = jnp.where(active & (rows == y), 1 << x, 0)
        carry = (
            objects | cell,
            late | jnp.where(is_late, cell, 0),
            present | jnp.where(active, 1 << pair, 0),
            complete & (~active | (total > 0)),
        )
        return carry, (jnp.where(active, y * size.width + x, NOTHING), pair)

    given = active, things.late, things.unique, squares, pairs, for_place, for_pair
    start = nothing, nothing, jnp.int32(0), jnp.bool_(True)
    (objects, late, _, complete), (places, pairs) = jax.lax.scan(place, start, given)
    early = objects & ~late
    *last, found = _place_agent(row, doors, early, size, draws)
    x, y, heading = (jnp.where(row.agent_first, a, b) for a, b in zip((x, y, heading), last))
    return Placed(x, y, heading, places, pairs, early, complete & jnp.where(row.agent_first, first, found))


def _place_agent(
    row: Row, doors: Doors, objects: Int[Array, " H"], size: levels.Shape, draws: Draws
) -> tuple[Int[Array, ""], Int[Array, ""], Int[Array, ""], Bool[Array, ""]]:
    """Returns a place and a heading such that the cell ahead is empty or a wall, and whether there is one."""
    faced = row.faces_doors | row.faces_added & doors.added
    around = jnp.pad(objects | bits_at(size.height, doors.x, doors.y, (doors.form > 0) & ~faced), 1)
    ahead = jnp.stack([around[1:-1] >> 1, around[2:], around[1:-1] << 1, around[:-2]])
    uniforms = draws.take(2)
    rooms = row.agent_rooms & ~jnp.where(row.agent_outside, doors.locked_room, 0)
    square = _square(any_bit(rooms, uniforms[0]), row.room_size, size.height)
    free = square & ~row.walls & ~objects & ~ahead
    counts = jax.lax.population_count(free)
    by_heading = jnp.sum(counts, axis=1)
    total = jnp.sum(by_heading)
    heading, rank = nth(by_heading, whole(uniforms[1], total))
    y, rank = nth(counts[heading], rank)
    x = nth_bit(free[heading, y], rank)
    return x, y, heading, total > 0


def _square(room: Int[Array, "*K"], room_size: Int[Array, ""], height: int) -> Int32[Array, "*K H"]:
    """Returns the cells of rooms, with their walls; the last axis of `room` has length 1, or there is none."""
    top, left = room // ROOMS * (room_size - 1), room % ROOMS * (room_size - 1)
    rows = np.arange(height)
    return jnp.where((rows >= top) & (rows < top + room_size), ((1 << room_size) - 1) << left, 0)
