"""Recipes as arrays, so that one program makes all levels. Shapes: `K` things, `D` walls, `H` rows."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

from envs_jax.babyai.codes import NO_VERB, PLACES, SINGLE
from envs_jax.babyai.levels import Shape
from envs_jax.babyai.parts import (
    DOWN,
    LOCKED,
    OUTSIDE,
    RANDOM,
    ROOMS,
    SEQUENCE,
    TO_RIGHT,
    Choice,
    Goal,
    Grammar,
    Lock,
    Recipe,
    sides,
    wall,
)
from envs_jax.babyai.recipes import recipes
from envs_jax.errors import BadValue

TARGETS = 4
"""Objects that a mission may name: two of each part."""

NO_KEY = -1

DRAWN = -1
"""Order of a mission that is drawn."""


class Things(NamedTuple):
    """Things to be placed, see `parts.Thing`. What is not `there` fills the row."""

    there: Bool[Array, " K"]
    pairs: Int32[Array, " K"]
    rooms: Int32[Array, " K"]
    locked: Int32[Array, " K"]
    key_of: Int32[Array, " K"]
    unique: Bool[Array, " K"]
    hides_key: Bool[Array, " K"]
    blocks: Bool[Array, " K"]
    late: Bool[Array, " K"]


class Row(NamedTuple):
    """One level; see `parts.Recipe`, `parts.Agent`, `parts.Goal` and `parts.Grammar`.

    `middle` is the place near which things are not put while the agent is not placed.
    """

    number: Int32[Array, ""]
    room_size: Int32[Array, ""]
    rooms: Int32[Array, ""]
    limit: Int32[Array, ""]
    reach: Int32[Array, ""]
    middle: Int32[Array, " 2"]
    walls: Int32[Array, " H"]
    opened_last: Int32[Array, " H"]
    agent_rooms: Int32[Array, ""]
    agent_first: Bool[Array, ""]
    agent_outside: Bool[Array, ""]
    things: Things
    door_forms: Int32[Array, " D"]
    door_colors: Int32[Array, " D"]
    opened: Bool[Array, " D"]
    walls_inside: Bool[Array, " D"]
    lock_weights: Int32[Array, " L"]
    lock_percent: Int32[Array, ""]
    connects: Bool[Array, ""]
    avoids_color: Bool[Array, ""]
    faces_added: Bool[Array, ""]
    faces_doors: Bool[Array, ""]
    is_goal: Bool[Array, ""]
    verb: Int32[Array, ""]
    choices: Bool[Array, "T K+D"]
    only_locked: Bool[Array, ""]
    by: Int32[Array, ""]
    strict: Bool[Array, " 2"]
    order: Int32[Array, ""]
    swaps: Bool[Array, ""]
    carries: Bool[Array, ""]
    verbs: Int32[Array, ""]
    kinds: Int32[Array, ""]
    place_weights: Int32[Array, " P"]
    unlocks: Bool[Array, ""]
    spares_keys: Bool[Array, ""]


class Table:
    """Rows in one array, because each look-up in an array costs compile time."""

    def __init__(self, rows: list[Row]):
        leaves = [[np.asarray(leaf) for leaf in jax.tree.leaves(row, is_leaf=_is_column)] for row in rows]
        self.things = len(rows[0].things.there)
        self._structure = jax.tree.structure(rows[0], is_leaf=_is_column)
        self._kinds = [(leaf.shape, leaf.dtype == bool) for leaf in leaves[0]]
        self._rows = np.array([np.concatenate([leaf.reshape(-1) for leaf in row]) for row in leaves], np.int32)

    def __len__(self) -> int:
        return len(self._rows)

    def look_up(self, index: Int[Array, ""]) -> Int32[Array, " R"]:
        """Returns a row, packed."""
        return jnp.asarray(self._rows)[index]

    def unpack(self, packed: Int32[Array, " R"]) -> Row:
        """Returns a row in its parts. It is cheap where these are used, and costs compile time where they are kept."""
        first, leaves = 0, []
        for shape, is_bool in self._kinds:
            count = math.prod(shape)
            leaf = packed[first : first + count].reshape(shape)
            leaves.append(leaf != 0 if is_bool else leaf)
            first += count
        return jax.tree.unflatten(self._structure, leaves)


def check_numbers(numbers: tuple[int, ...]) -> tuple[int, ...]:
    """Returns numbers of levels; a `ValueError` if there are none or one is not of a level."""
    numbers, known = tuple(numbers), recipes()
    if not numbers or any(number not in known for number in numbers):
        raise BadValue(
            f"the levels are {numbers}; expected at least one number from 1 to {len(known)}", "levels", numbers
        )
    return numbers


def shape_of(numbers: tuple[int, ...]) -> Shape:
    """Returns the smallest shape that holds the levels with these numbers, with and without MiniGrid's slips."""
    numbers = check_numbers(numbers)
    chosen = [recipes(upstream)[number] for number in numbers for upstream in (False, True)]
    return Shape(
        height=max(_side(recipe, recipe.rows) for recipe in chosen),
        width=max(_side(recipe, recipe.columns) for recipe in chosen),
        slots=max(recipe.most_objects for recipe in chosen),
        clauses=max(_clauses(recipe) for recipe in chosen),
        hides=any(thing.hides_key for recipe in chosen for thing in recipe.things),
    )


def table_of(numbers: tuple[int, ...], upstream: bool) -> Table:
    """Returns the rows of levels."""
    chosen = [(number, recipes(upstream)[number]) for number in numbers]
    count = max([1, *(len(recipe.things) for _, recipe in chosen)])
    goals = [recipe.mission for _, recipe in chosen if isinstance(recipe.mission, Goal)]
    targets = max([1, *(len(goal.choices) for goal in goals)])
    return Table([_row(number, recipe, shape_of(numbers), count, targets) for number, recipe in chosen])


def _is_column(value: object) -> bool:
    return isinstance(value, (list, tuple)) and not isinstance(value, (Row, Things))


def _side(recipe: Recipe, rooms: int) -> int:
    return rooms * (recipe.room_size - 1) + 1


def _clauses(recipe: Recipe) -> int:
    mission = recipe.mission
    if isinstance(mission, Goal):
        return 1 if mission.order == SINGLE else 4
    return max(1, 4 if SEQUENCE in mission.kinds else len(mission.kinds))


def _bits(numbers: Iterable[int]) -> int:
    return sum(1 << number for number in set(numbers))


def _row(number: int, recipe: Recipe, shape: Shape, count: int, targets: int) -> Row:
    rooms = recipe.rooms
    inside = {wall(room, side) for room, side in sides(recipe.rows, recipe.columns)}
    doors = {w: (form, color) for w, form, color in recipe.doors}
    walls, opened = _wall_bits(recipe, shape)
    middle = [side // 2 * (recipe.room_size - 1) + recipe.room_size // 2 for side in (recipe.columns, recipe.rows)]
    goal = recipe.mission if isinstance(recipe.mission, Goal) else Goal(NO_VERB, ())
    grammar = recipe.mission if isinstance(recipe.mission, Grammar) else Grammar()
    choices = [*goal.choices, *[Choice()] * (targets - len(goal.choices))]
    columns: dict[str, Any] = dict(
        number=number,
        room_size=recipe.room_size,
        rooms=_bits(rooms),
        limit=recipe.limit,
        middle=middle,
        walls=walls & ~opened if recipe.opened_first else walls,
        opened_last=np.zeros_like(opened) if recipe.opened_first else opened,
        agent_rooms=_bits(recipe.agent.rooms or rooms),
        agent_first=recipe.agent.first,
        agent_outside=recipe.agent.locked == OUTSIDE,
        things=_things(recipe, count),
        door_forms=[doors.get(w, (0, RANDOM))[0] for w in range(LOCKED)],
        door_colors=[doors.get(w, (0, RANDOM))[1] for w in range(LOCKED)],
        opened=[w in recipe.opened for w in range(LOCKED)],
        walls_inside=[w in inside for w in range(LOCKED)],
        lock_weights=_lock_weights(recipe.lock),
        lock_percent=round(100 * recipe.lock.probability),
        connects=recipe.connects,
        avoids_color=recipe.avoids_color,
        faces_added=recipe.faces_added or recipe.faces_doors,
        faces_doors=recipe.faces_doors,
        reach=recipe.reach,
        is_goal=isinstance(recipe.mission, Goal),
        verb=goal.verb,
        choices=[
            [k in choice.things for k in range(count)] + [w in choice.walls for w in range(LOCKED)]
            for choice in choices
        ],
        only_locked=any(choice.only_locked for choice in choices),
        by=goal.by,
        strict=goal.strict,
        order=DRAWN if goal.order is None else goal.order,
        swaps=goal.swaps,
        carries=goal.carries,
        verbs=_bits(grammar.verbs),
        kinds=_bits(grammar.kinds),
        # A place is given with probability 1/2.
        place_weights=[len(PLACES)] + [1] * len(PLACES) if grammar.places else [1] + [0] * len(PLACES),
        unlocks=grammar.unlocks,
        spares_keys=grammar.spares_keys and isinstance(recipe.mission, Grammar),
    )
    return Row(**columns)


def _things(recipe: Recipe, count: int) -> Things:
    things = recipe.things

    def column(values: Iterable[int], kind: type = np.int32) -> np.ndarray:
        values = np.array(list(values), kind)
        return np.pad(values, (0, count - len(values)))

    columns: dict[str, Any] = dict(
        there=np.arange(count) < len(things),
        pairs=column(thing.pairs for thing in things),
        rooms=column(_bits(thing.rooms or recipe.rooms) for thing in things),
        locked=column(thing.locked for thing in things),
        key_of=column(NO_KEY if thing.key_of is None else thing.key_of for thing in things),
        unique=column((thing.unique for thing in things), bool),
        hides_key=column((thing.hides_key for thing in things), bool),
        blocks=column((thing.blocks for thing in things), bool),
        late=column((thing.late for thing in things), bool),
    )
    return Things(**columns)


def _wall_bits(recipe: Recipe, shape: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Sets of cells: the walls and what is outside of the level, and what is removed of them."""
    across = recipe.room_size - 1
    y, x = np.mgrid[: shape.height, : shape.width]
    solid = (x % across == 0) | (y % across == 0) | (x > recipe.columns * across) | (y > recipe.rows * across)
    removed = np.zeros_like(solid)
    for room in recipe.rooms:
        row, column = divmod(room, ROOMS)
        along = slice(1, across)
        if wall(room, TO_RIGHT) in recipe.opened:
            removed[row * across : (row + 1) * across, (column + 1) * across][along] = True
        if wall(room, DOWN) in recipe.opened:
            removed[(row + 1) * across, column * across : (column + 1) * across][along] = True
    place = 1 << np.arange(shape.width, dtype=np.int32)
    return np.sum(solid * place, axis=1), np.sum(removed * place, axis=1)


def _lock_weights(lock: Lock) -> np.ndarray:
    weights = np.zeros((ROOMS * ROOMS, 4), np.int32)
    for room, side, weight in lock.choices:
        weights[room, side] = weight
    return weights.reshape(-1)
