"""Rooms as bits: their walls and doors, and what can be reached.

A set of cells is i32[H], a row of the grid each, whose bit `x` is the cell in column `x`. Shapes: `D` walls between
rooms, `H` rows.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int32

from envs_jax.babyai.bits import nth, nth_bit
from envs_jax.babyai.codes import CLOSED_DOOR, COLORS, LOCKED_DOOR
from envs_jax.babyai.parts import EITHER, LOCKED, RANDOM, ROOMS, sides, wall
from envs_jax.babyai.tables import Row
from envs_jax.errors import BadValue

WALLS = LOCKED
_SIDES = sides()
_ENDS = np.array([[room for room, side in _SIDES if wall(room, side) == number] for number in range(WALLS)])
_UPRIGHT = np.arange(WALLS) < ROOMS * (ROOMS - 1)
_WALL_OF = np.full(ROOMS * ROOMS * 4, WALLS)
_WALL_OF[[4 * room + side for room, side in _SIDES]] = [wall(room, side) for room, side in _SIDES]
_STEPS_PER_TEST = 6


class Doors(NamedTuple):
    """Doors by wall. `form` is 0 where there is none; `added` are those that connect the rooms.

    `locked_room` is the bit of the room that was locked, `locked_wall` the wall of its door; 0 and `LOCKED` for none.
    """

    x: Int32[Array, " D"]
    y: Int32[Array, " D"]
    form: Int32[Array, " D"]
    color: Int32[Array, " D"]
    added: Bool[Array, " D"]
    locked_room: Int32[Array, ""]
    locked_wall: Int32[Array, ""]


class Draws:
    """Hands out uniform numbers in [0, 1), of which one call makes all: each call of a random function costs compile
    time.
    """

    def __init__(self, uniforms: Float[Array, " U"]):
        self._uniforms, self._used = uniforms, 0

    def take(self, *shape: int) -> Float[Array, "..."]:
        """Returns numbers that were not used yet."""
        first, self._used = self._used, self._used + int(np.prod(shape))
        if self._used > len(self._uniforms):
            raise BadValue(
                f"{self._used} uniform numbers are needed; expected at most {len(self._uniforms)}",
                "uniforms",
                len(self._uniforms),
            )
        return self._uniforms[first : self._used].reshape(shape)


def whole(uniforms: Float[Array, "*K"], count: int | Int[Array, ""]) -> Int32[Array, "*K"]:
    """Maps uniform numbers to integers from 0 to `count` - 1."""
    return jnp.floor(uniforms * count).astype(jnp.int32)


def any_bit(bits: Int32[Array, "*K"], uniform: Float[Array, "*K"]) -> Int32[Array, "*K"]:
    """Returns the position of a uniform set bit."""
    return nth_bit(bits, whole(uniform, jax.lax.population_count(bits)))


def bits_of(bits: Int32[Array, "*K"], width: int) -> Bool[Array, "*K {width}"]:
    """Returns whether each bit is set."""
    return (bits[..., None] >> np.arange(width) & 1).astype(bool)


def build_doors(row: Row, draws: Draws) -> Doors:
    """Draws the doors of a level: those of the recipe, that of the locked room, and those that connect all rooms."""
    size = row.room_size
    along = 1 + whole(draws.take(WALLS), size - 2)
    (top, left), across = np.divmod(_ENDS[:, 0], ROOMS), size - 1
    x = jnp.where(_UPRIGHT, (left + 1) * across, left * across + along)
    y = jnp.where(_UPRIGHT, top * across + along, (top + 1) * across)

    lock = draws.take(2)
    choice = nth(row.lock_weights, whole(lock[0], jnp.sum(row.lock_weights)))[0]
    has_lock = 100 * lock[1] < row.lock_percent
    room = choice // 4
    locked_wall = jnp.where(has_lock, jnp.asarray(_WALL_OF)[choice], LOCKED).astype(jnp.int32)
    form = jnp.where(row.door_forms == EITHER, CLOSED_DOOR + (draws.take(WALLS) < 0.5), row.door_forms)
    form = jnp.where(np.arange(WALLS) == locked_wall, LOCKED_DOOR, form)

    chances, order = draws.take(WALLS), draws.take(COLORS)
    shuffled = jnp.sum(order[:, None] > order, axis=1)
    palette = jnp.concatenate([np.arange(COLORS), shuffled])
    drawn = row.door_colors == RANDOM
    color = jnp.where(drawn, whole(chances, COLORS), palette[jnp.minimum(row.door_colors, RANDOM - 1)])
    avoided = color[jnp.minimum(locked_wall, WALLS - 1)]
    others = (avoided + 1 + whole(chances, COLORS - 1)) % COLORS
    avoids = row.avoids_color & (draws.take() < 0.5)

    # MiniGrid adds no door to a locked room.
    closed_off = has_lock & jnp.any(room == _ENDS, axis=1)
    there = (form > 0) | row.opened
    candidate = row.connects & row.walls_inside & ~there & ~closed_off
    turn = 1 - draws.take(WALLS)
    last = _last_turn(jnp.where(there, 0, jnp.where(candidate, turn, jnp.inf)), row.rooms)
    added = candidate & (turn <= last)
    return Doors(
        x=x.astype(jnp.int32),
        y=y.astype(jnp.int32),
        form=jnp.where(added, CLOSED_DOOR, form).astype(jnp.int32),
        color=jnp.where(avoids & added, others, color).astype(jnp.int32),
        added=added,
        locked_room=jnp.where(has_lock, 1 << room, 0).astype(jnp.int32),
        locked_wall=locked_wall,
    )


def _last_turn(turns: Float[Array, " D"], rooms: Int32[Array, ""]) -> Float[Array, ""]:
    """Returns the turn at which all rooms are connected, if doors are added in the order of their turns.

    That is the greatest turn on the best ways between rooms, where a way is as good as its latest door.
    """
    between = np.full((ROOMS * ROOMS,) * 2, WALLS)
    between[_ENDS[:, 0], _ENDS[:, 1]] = between[_ENDS[:, 1], _ENDS[:, 0]] = np.arange(WALLS)
    best = jnp.append(turns, jnp.inf)[between]
    for room in range(ROOMS * ROOMS):
        best = jnp.minimum(best, jnp.maximum(best[:, room, None], best[room]))
    # Room 0 is in every level.
    return jnp.max(jnp.where((rooms >> np.arange(1, ROOMS * ROOMS)) & 1 == 1, best[0, 1:], 0))


def bits_at(height: int, x: Int[Array, " K"], y: Int[Array, " K"], there: Bool[Array, " K"]) -> Int32[Array, " H"]:
    """Returns a set of different cells."""
    return jnp.sum(jnp.where(there & (np.arange(height)[:, None] == y), 1 << x, 0), axis=1).astype(jnp.int32)


def flood(start: Int32[Array, " H"], inside: Int32[Array, " H"], passable: Int32[Array, " H"]) -> Int32[Array, " H"]:
    """Returns the cells inside that a walk reaches; it ends on a cell that is not passable."""

    def spread(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        before = reached = carry[0]
        for _ in range(_STEPS_PER_TEST):
            source = reached & passable
            padded = jnp.pad(source, 1)
            reached |= (source << 1 | source >> 1 | padded[2:] | padded[:-2]) & inside
        return reached, jnp.any(reached != before)

    return jax.lax.while_loop(lambda carry: carry[1], spread, (start, jnp.bool_(True)))[0]
