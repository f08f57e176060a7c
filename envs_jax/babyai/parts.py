"""What a recipe of a level consists of.

Rooms are numbered `ROOMS * row + column`, also where a level has fewer than 3x3.
"""

from dataclasses import dataclass

from envs_jax.babyai.codes import COLOR_NAMES, COLORS, DOOR, FORMS, GO_TO, KEY, OPEN, PICK_UP, PUT_NEXT, SINGLE

ROOMS = 3
"""Rows and columns of rooms, at most."""

TO_RIGHT, DOWN, TO_LEFT, UP = range(4)
"""Sides of a room."""

EITHER = -1
"""Form of a door that is closed or locked with equal probability."""

DISTINCT = COLORS
"""Colors `DISTINCT + i` of doors: the i-th of a random order of the colors."""

RANDOM = 2 * COLORS
"""Color of a door: any."""

EVERYWHERE, OUTSIDE, INSIDE = range(3)
"""Whether a placement is bound to the locked room: not at all, to the other rooms, to that room."""

UNCHECKED, ALL, NOT_ALL, TARGET = range(4)
"""Which objects must be reachable when none is moved: no matter; all, doors included; not all; one of the mission."""

BY_BOTH, BY_TYPE, BY_COLOR, BY_PLACE, BY_SOME = range(5)
"""How a mission describes an object: type and color, one of them, type and place; or one of the first three."""

ACT, AND, SEQUENCE = range(3)
"""Kinds of missions in a grammar."""


LOCKED = 2 * ROOMS * (ROOMS - 1)
"""In place of a wall: the one with the door of the locked room."""

CENTER = ROOMS + 1
"""The room in the middle of 3x3."""

_STEPS = (1, ROOMS, -1, -ROOMS)


@dataclass(frozen=True)
class Thing:
    """An object to be placed.

    Attributes:
        pairs: bits of what it may be, each `form * COLORS + color`.
        rooms: where it may be; all rooms if empty.
        locked: `EVERYWHERE`, `OUTSIDE` or `INSIDE`. A thing that has no room left is left out.
        key_of: it is the key of the door in this wall, and left out if there is none.
        unique: it differs from everything before it.
        hides_key: it holds the key of the locked door.
        blocks: it lies directly to the left of the locked door.
        late: MiniGrid places it after the agent and after checking what is reachable.
    """

    pairs: int
    rooms: tuple[int, ...] = ()
    locked: int = EVERYWHERE
    key_of: int | None = None
    unique: bool = False
    hides_key: bool = False
    blocks: bool = False
    late: bool = False


@dataclass(frozen=True)
class Agent:
    """Where the agent starts: in one of the rooms, all if empty; `first` if it is placed before all things."""

    rooms: tuple[int, ...] = ()
    first: bool = False
    locked: int = EVERYWHERE


@dataclass(frozen=True)
class Lock:
    """A door that locks one room, with a probability; the choice among (room, side) goes by weights."""

    choices: tuple[tuple[int, int, int], ...]
    probability: float = 1.0


@dataclass(frozen=True)
class Choice:
    """What a mission may name: things by their number in the recipe, and doors by their walls."""

    things: tuple[int, ...] = ()
    walls: tuple[int, ...] = ()
    only_locked: bool = False


@dataclass(frozen=True)
class Goal:
    """A mission about things that are drawn from choices, without repetition.

    Attributes:
        verb: of every clause; `codes.NO_VERB` for going to it, or picking it up or opening it.
        choices: the first and second object of the first part, then of the second part.
        by: how they are described.
        strict: of the two parts.
        order: how the parts are joined, or `None` if it is drawn.
        swaps: the two objects change places with probability 1/2.
        carries: the agent starts with the first object in its hands.
    """

    verb: int
    choices: tuple[Choice, ...]
    by: int = BY_BOTH
    strict: tuple[bool, bool] = (False, False)
    order: int | None = SINGLE
    swaps: bool = False
    carries: bool = False


@dataclass(frozen=True)
class Grammar:
    """A mission of MiniGrid's general generator.

    Attributes:
        verbs: of clauses.
        kinds: of missions.
        places: whether descriptions may have a place.
        unlocks: whether an object of the mission may be in the locked room only.
        spares_keys: whether the mission must not name a key of a locked door.
    """

    verbs: tuple[int, ...] = (GO_TO, PICK_UP, OPEN, PUT_NEXT)
    kinds: tuple[int, ...] = (ACT, AND, SEQUENCE)
    places: bool = True
    unlocks: bool = True
    spares_keys: bool = True


@dataclass(frozen=True)
class Recipe:
    """A level.

    Attributes:
        doors: wall, form and color of each.
        opened: walls that are removed, before things are placed or after it.
        connects: closed doors are added at random walls until all rooms are connected.
        avoids_color: with probability 1/2, doors so added do not have the color of the locked door.
        faces_added, faces_doors: the agent is placed before doors are added, or before all doors, and may face one.
        limit: most primitive actions; 0 for MiniGrid's rule, which depends on the mission.
    """

    name: str
    room_size: int
    agent: Agent
    things: tuple[Thing, ...]
    mission: Goal | Grammar
    rows: int = ROOMS
    columns: int = ROOMS
    doors: tuple[tuple[int, int, int], ...] = ()
    lock: Lock = Lock((), 0.0)
    opened: tuple[int, ...] = ()
    opened_first: bool = False
    connects: bool = False
    avoids_color: bool = False
    faces_added: bool = False
    faces_doors: bool = False
    reach: int = UNCHECKED
    limit: int = 0

    @property
    def rooms(self) -> tuple[int, ...]:
        """Numbers of the rooms."""
        return tuple(ROOMS * row + column for row in range(self.rows) for column in range(self.columns))

    @property
    def most_objects(self) -> int:
        """Objects and doors, at most; a hidden key included."""
        # Where a thing is bound to each room but the locked one, one room's are left out.
        bound = sum(thing.locked == OUTSIDE and len(thing.rooms) == 1 for thing in self.things)
        count = len(self.things) - bound // len(self.rooms) + sum(thing.hides_key for thing in self.things)
        if not self.connects:
            return count + len(self.doors) + bool(self.lock.choices)
        # The last door added connects two parts; without it, all walls between them are without a door.
        doors, doors_if_locked = {(3, 3): (11, 10), (2, 3): (6, 6), (2, 2): (3, 3)}[self.rows, self.columns]
        keys = sum(thing.key_of == LOCKED for thing in self.things)
        with_lock = count + doors_if_locked if self.lock.probability > 0 else 0
        return max(with_lock, count - keys + doors if self.lock.probability < 1 else 0)


def wall(room: int, side: int) -> int:
    """Returns the number of an inner wall: first those between rooms of a row, then those between rooms of a column."""
    first = min(room, room + _STEPS[side])
    return first - first // ROOMS if side in (TO_RIGHT, TO_LEFT) else ROOMS * (ROOMS - 1) + first


def sides(rows: int = ROOMS, columns: int = ROOMS) -> list[tuple[int, int]]:
    """Returns all (room, side) with a neighbor."""
    steps = {TO_RIGHT: (0, 1), DOWN: (1, 0), TO_LEFT: (0, -1), UP: (-1, 0)}
    return [
        (ROOMS * row + column, side)
        for row in range(rows)
        for column in range(columns)
        for side, (down, right) in steps.items()
        if 0 <= row + down < rows and 0 <= column + right < columns
    ]


def lock_of_sides(probability: float, rows: int = ROOMS, columns: int = ROOMS) -> Lock:
    """Returns a lock with a uniform (room, side)."""
    return Lock(tuple((room, side, 1) for room, side in sides(rows, columns)), probability)


def lock_of_rooms() -> Lock:
    """Returns a lock with a uniform room of 3x3, then a uniform side."""
    rooms = [room for room, _ in sides()]
    return Lock(tuple((room, side, 12 // rooms.count(room)) for room, side in sides()))


def pairs(*names: str) -> int:
    """Returns the bits of the pairs that fit a name: a form, a color, both, or neither."""
    bits = 0
    for form in range(DOOR):
        for color in range(COLORS):
            if any(set(name.split()) <= {FORMS[form], COLOR_NAMES[color]} for name in names):
                bits |= 1 << form * COLORS + color
    return bits


def things(count: int = 1, *rooms: int, name: str = "", **options) -> tuple[Thing, ...]:
    """Returns equal things; the options are those of `Thing`."""
    return (Thing(pairs(name), rooms, **options),) * count


def key(*rooms: int, of: int = LOCKED, **options) -> tuple[Thing, ...]:
    """Returns the key of a door."""
    return things(1, *rooms, name=FORMS[KEY], key_of=of, **options)


def around(form: int, *colors: int) -> tuple[tuple[int, int, int], ...]:
    """Returns doors on the four sides of the room in the middle."""
    return tuple((wall(CENTER, side), form, color) for side, color in zip(range(4), colors))
