"""Levels as arrays, i8[H, W]: the cells, then a header that fills the last rows.

A level can be given to an environment of its `Shape`, and level packs are `.npy` files (`envs_jax.packs`). The header
has the fields of `HEADER`, then eight numbers for each clause of the mission: verb, strict, and (type, color, place) of
two objects.
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Int8, Int16, Int32, UInt32

from envs_jax.babyai.bits import nth, nth_bit, pack
from envs_jax.babyai.codes import (
    ANY,
    BOX,
    CLAUSES,
    COLORS,
    DIRECTIONS,
    EMPTY,
    HIDING,
    KEY,
    LAST_CELL,
    OBJECT,
    PLACES,
    PUT_NEXT,
    WALL,
    cell_of,
)
from envs_jax.babyai.state import NOTHING, BabyAIState, Mission, World
from envs_jax.errors import BadValue
from envs_jax.packs import read_pack

HEADER = (
    "number",
    "x",
    "y",
    "heading",
    "room_size",
    "max_steps_hundreds",
    "max_steps_rest",
    "carried_x",
    "carried_y",
    "order",
)
"""`number` is the level's, 1 to 40, or 0 if no valid level was found. `carried_x` and `carried_y` name the object that
the agent holds at the start, which is still among the cells; `state.NOTHING` for none."""

_CLAUSE = 8


@dataclasses.dataclass(frozen=True)
class Shape:
    """Sizes that levels of an environment share.

    Attributes:
        height, width: rows and columns of the grid.
        slots: most objects, doors and hidden keys included.
        clauses: most clauses of a mission: 1, 2, or 4 if it has two parts.
        hides: whether a box may hide a key; it has the last slot.
    """

    height: int
    width: int
    slots: int
    clauses: int = 1
    hides: bool = False

    @property
    def rows(self) -> int:
        """H of a level: the rows of the grid and of the header."""
        return self.height + -(-self.header // self.width)

    @property
    def header(self) -> int:
        """Length of the header."""
        return len(HEADER) + _CLAUSE * self.clauses

    def holds(self, other: "Shape") -> bool:
        """Whether every level of another shape fits."""
        sizes = ("height", "width", "slots", "clauses", "hides")
        return all(getattr(self, size) >= getattr(other, size) for size in sizes)


class Start(NamedTuple):
    """A decoded level. `world_before` still has the object that the agent holds at the start on the grid."""

    world: World
    world_before: World
    mission: Mission
    number: Int[Array, ""]
    room_size: Int[Array, ""]
    max_steps: Int[Array, ""]


def encode(
    cells: Int[Array, "R K"], header: dict[str, Int[Array, ""]], mission: Mission, shape: Shape
) -> Int8[Array, "H W"]:
    """Makes a level of cells that fit the shape; what is outside of them is wall. `header` has all of `HEADER`."""
    rows, columns = cells.shape
    grid = jnp.pad(cells, ((0, shape.height - rows), (0, shape.width - columns)), constant_values=WALL)
    numbers = jnp.stack([jnp.asarray(header[name], jnp.int32) for name in HEADER])
    clauses = jnp.concatenate(
        [mission.verb[:, None], mission.strict[:, None], mission.described.reshape(CLAUSES, -1)], axis=1
    )[: shape.clauses]
    flat = jnp.concatenate([numbers, clauses.reshape(-1).astype(jnp.int32)])
    flat = jnp.pad(flat, (0, (shape.rows - shape.height) * shape.width - len(flat)))
    return jnp.concatenate([grid, flat.reshape(-1, shape.width)]).astype(jnp.int8)


def decode(level: Int8[Array, "H W"], shape: Shape) -> Start:
    """Reads a level."""
    level = level.astype(jnp.int32)
    stored, flat = level[: shape.height], level[shape.height :].reshape(-1)
    header = dict(zip(HEADER, flat))
    clauses = flat[len(HEADER) : shape.header].reshape(shape.clauses, _CLAUSE)
    clauses = jnp.concatenate([clauses, jnp.tile(_no_clause(), (CLAUSES - shape.clauses, 1))])
    mission = Mission(
        verb=clauses[:, 0].astype(jnp.int8),
        strict=clauses[:, 1].astype(bool),
        described=clauses[:, 2:].reshape(CLAUSES, 2, 3).astype(jnp.int8),
        order=header["order"].astype(jnp.int8),
    )
    cells, hides = stored, stored >= HIDING
    if shape.hides:
        cells = jnp.where(hides, cell_of(BOX, (stored - HIDING) // COLORS), stored)
    seen_slots = shape.slots - shape.hides
    places = _object_places(cells, seen_slots)
    slot_cells = jnp.where(places >= 0, cells.reshape(-1)[places], 0)
    hidden = jnp.full(seen_slots, NOTHING)
    if shape.hides:
        content = jnp.max(jnp.where(hides, cell_of(KEY, (stored - HIDING) % COLORS), 0))
        hidden = jnp.where((places >= 0) & hides.reshape(-1)[places], seen_slots, NOTHING)
        hidden, places = jnp.append(hidden, NOTHING), jnp.append(places, NOTHING)
        slot_cells = jnp.append(slot_cells, content)
    places = places.astype(jnp.int16)
    before = World(
        cells=cells.astype(jnp.int8),
        slot_cells=slot_cells.astype(jnp.int8),
        places=places,
        known_places=places,
        hidden=hidden.astype(jnp.int8),
        x=header["x"],
        y=header["y"],
        heading=header["heading"],
        carrying=jnp.int32(NOTHING),
        steps=jnp.int32(0),
    )
    carried = header["carried_x"] >= 0
    place = header["carried_y"] * shape.width + header["carried_x"]
    held = carried & (places == place)
    lifted = before.cells.reshape(-1).at[jnp.where(carried, place, shape.height * shape.width)].set(EMPTY, mode="drop")
    world = before.replace(
        cells=lifted.reshape(before.cells.shape),
        places=jnp.where(held, NOTHING, places).astype(jnp.int16),
        carrying=jnp.where(carried, jnp.argmax(held), NOTHING).astype(jnp.int32),
    )
    max_steps = 100 * header["max_steps_hundreds"] + header["max_steps_rest"]
    return Start(world, before, mission, header["number"], header["room_size"], max_steps)


def _object_places(cells: Int[Array, "R K"], size: int) -> Int32[Array, " {size}"]:
    """Returns the places of the first objects, row by row; it costs less than `jnp.nonzero`, which counts all cells."""
    objects, width = pack(cells >= OBJECT, 1)[:, 0], cells.shape[1]
    counts, rank = jax.lax.population_count(objects).astype(jnp.int32), jnp.arange(size)
    row, rank_in_row = nth(counts[None], rank)
    return jnp.where(rank < jnp.sum(counts), row * width + nth_bit(objects[row], rank_in_row), NOTHING)


def extent(cells: Int[np.ndarray, "H W"]) -> tuple[int, int]:
    """Returns rows and columns of a level, around which its grid is filled up with walls."""
    inside = np.asarray(cells) != WALL
    return int(np.flatnonzero(inside.any(axis=1))[-1]) + 2, int(np.flatnonzero(inside.any(axis=0))[-1]) + 2


def images(level: Int8[np.ndarray, "H W"], shape: Shape) -> list[Int8[np.ndarray, "H W"]]:
    """Returns a level, and those of its rotations and mirror images that fit the shape. Runs on the host."""
    level = np.asarray(level)
    rows, columns = extent(level[: shape.height])
    return [
        _image(level, shape, flips, transposed)
        for transposed in (False, True)
        if not transposed or (columns <= shape.height and rows <= shape.width)
        for flips in ((False, False), (True, False), (False, True), (True, True))
    ]


def _image(
    level: Int8[np.ndarray, "H W"], shape: Shape, flips: tuple[bool, bool], transposed: bool
) -> Int8[np.ndarray, "H W"]:
    """A level whose columns and rows are reversed as `flips` says, and which is then transposed."""
    rows, columns = extent(level[: shape.height])
    inside = level[:rows, :columns][:: -1 if flips[1] else 1, :: -1 if flips[0] else 1]
    inside = inside.T if transposed else inside
    grid = np.full((shape.height, shape.width), WALL, np.int8)
    grid[: inside.shape[0], : inside.shape[1]] = inside
    header = level[shape.height :].reshape(-1).copy()
    order = slice(None, None, -1 if transposed else 1)
    for name in ("x", "carried_x"):
        at = HEADER.index(name)  # and the row after it
        if header[at] >= 0:
            place = [size - 1 - i if flip else i for i, size, flip in zip(header[at : at + 2], (columns, rows), flips)]
            header[at : at + 2] = place[order]
    heading = HEADER.index("heading")
    ahead = (DIRECTIONS[header[heading]] * np.where(flips, -1, 1))[order]
    header[heading] = np.flatnonzero((ahead == DIRECTIONS).all(axis=1))[0]
    if (sum(flips) + transposed) % 2:  # left is right
        words = (len(HEADER) + _CLAUSE * np.arange(shape.clauses)[:, None] + [4, 7]).reshape(-1)
        sides = (header[words] >= 0) & (header[words] < len(PLACES) // 2)
        header[words] = np.where(sides, 1 - header[words], header[words])
    return np.concatenate([grid, header.reshape(-1, shape.width)])


def colors_of_clauses(shape: Shape) -> Int[np.ndarray, " K"]:
    """Places in the header of the colors that a mission names; `codes.ANY` is in them where it names none."""
    clauses = len(HEADER) + _CLAUSE * np.arange(shape.clauses)
    return np.sort(np.concatenate([clauses + 3, clauses + 6]))


def _no_clause() -> np.ndarray:
    return np.array([0, 0, *[ANY] * 6], np.int32)


def load_pack(path: str | Path, shape: Shape) -> Int8[np.ndarray, "N H W"]:
    """Reads a pack of levels of a shape; raises a `ValueError` if the file holds something else."""
    pack = read_pack(path)
    if pack.shape[1:] != (shape.rows, shape.width):
        raise BadValue(
            f"{path} has levels of shape {pack.shape[1:]}; expected ({shape.rows}, {shape.width}) for {shape}: write "
            "it with `envs_jax.babyai.levels.reshape`",
            path,
            pack.shape[1:],
        )
    grids, headers = pack[:, : shape.height], pack[:, shape.height :].reshape(len(pack), -1).astype(int)
    number, x, y, heading = headers[:, :4].T
    inside = (x >= 0) & (x < shape.width) & (y >= 0) & (y < shape.height)
    at_agent = grids[np.arange(len(pack)), np.clip(y, 0, shape.height - 1), np.clip(x, 0, shape.width - 1)]
    verbs = headers[:, len(HEADER) : shape.header : _CLAUSE]
    good = (
        (grids >= EMPTY).all(axis=(1, 2))
        & (grids <= (LAST_CELL if shape.hides else HIDING - 1)).all(axis=(1, 2))
        & inside
        & (at_agent == EMPTY)
    )
    good &= (number > 0) & (heading >= 0) & (heading < 4) & (verbs >= 0).all(axis=1) & (verbs <= PUT_NEXT).all(axis=1)
    good &= ((grids >= OBJECT).sum(axis=(1, 2)) <= shape.slots - shape.hides) & (verbs[:, 0] > 0)
    for index in np.flatnonzero(~good)[:1]:
        raise BadValue(
            f"{path}, level {index + 1} is no level of BabyAI of {shape}; write it with `levels.encode`",
            path,
            index + 1,
        )
    return pack


def hash_level(state: BabyAIState) -> UInt32[Array, "2"]:
    """Hashes the level of a state that was just reset: what is where, seen from the agent, and the mission.

    It is equal for rotations and mirror images, and independent of the shape.
    """
    hashes = jnp.stack([_hash(state, mirrored) for mirrored in (False, True)])
    smaller = (hashes[0, 0] < hashes[1, 0]) | (hashes[0, 0] == hashes[1, 0]) & (hashes[0, 1] < hashes[1, 1])
    return jnp.where(smaller, hashes[0], hashes[1])


def hash_state(state: BabyAIState) -> UInt32[Array, "2"]:
    """Hashes where everything is, what the mission compares with, and how far it is; independent of the shape."""
    progress, world = state.progress, state.world
    flags = jnp.concatenate([progress.first_done[None], state.terminated[None], progress.done])
    held = jnp.sum((progress.carried_before + 1) * np.array([1, 64, 64**2, 64**3]))
    facts = jnp.append(jnp.sum(flags.astype(jnp.int32) << np.arange(len(flags))), held)
    width = world.cells.shape[1]

    def at(place: Int16[Array, " S"]) -> Int32[Array, " S"]:
        row, column = jnp.divmod(place.astype(jnp.int32), width)
        return jnp.where(place < 0, 1023, row * 32 + column)

    # Each object with where it is now; in other shapes a level has more unused slots.
    objects = (world.slot_cells.astype(jnp.int32) * 1024 + at(world.places)) * 1024 + at(world.known_places)
    known = jnp.where((world.slot_cells > 0)[:, None], _mix(objects, 5), 0)
    return (
        _hash(state, False)
        + jnp.sum(_mix(facts, 4), axis=0, dtype=jnp.uint32)
        + jnp.sum(known, axis=0, dtype=jnp.uint32)
    )


def _hash(state: BabyAIState, mirrored: bool) -> UInt32[Array, "2"]:
    """Sums hashes of single facts, so that their order does not matter. What is no wall is enough to know the walls."""
    world, described = state.world, state.mission.described.astype(jnp.int32)
    height, width = world.cells.shape
    columns, rows = jnp.arange(width)[None] - world.x, jnp.arange(height)[:, None] - world.y
    forward = jnp.array([1, 0, -1, 0])[world.heading], jnp.array([0, 1, 0, -1])[world.heading]
    ahead = columns * forward[0] + rows * forward[1]
    right = rows * forward[0] - columns * forward[1]
    right = -right if mirrored else right
    cells = world.cells.astype(jnp.int32)
    facts = ((cells * 128 + ahead + 64) * 128) + right + 64
    grid = jnp.sum(jnp.where((cells == WALL)[..., None], 0, _mix(facts, 1)), axis=(0, 1), dtype=jnp.uint32)
    in_hand = jnp.where(world.carrying >= 0, world.slot_cells[world.carrying].astype(jnp.int32), 0)
    inside = jnp.max(jnp.where(world.hidden >= 0, world.slot_cells[world.hidden].astype(jnp.int32), 0))
    place = described[..., 2]
    if mirrored:
        place = jnp.where((place >= 0) & (place < len(PLACES) // 2), 1 - place, place)
    things = (described[..., 0] + 1) * 512 + (described[..., 1] + 1) * 32 + place + 1
    verbs = state.mission.verb.astype(jnp.int32) * 2 + state.mission.strict
    facts = jnp.concatenate(
        [things.reshape(-1), verbs, jnp.stack([in_hand, inside, state.mission.order.astype(jnp.int32)])]
    )
    facts += np.arange(len(facts)) << 16
    return grid + jnp.sum(_mix(facts, 2), axis=0, dtype=jnp.uint32)


def _mix(facts: Int[Array, "*K"], salt: int) -> UInt32[Array, "*K 2"]:
    """Two hashes of each integer (the finalizer of MurmurHash3)."""
    mixed = facts[..., None].astype(jnp.uint32) * jnp.uint32(2 * salt + 1)
    mixed += jnp.array([0x9E3779B9, 0x7F4A7C15], jnp.uint32) * jnp.uint32(salt)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ mixed >> shift) * jnp.uint32(factor)
    return mixed ^ mixed >> 16
