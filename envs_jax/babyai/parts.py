"""What a recipe of a level consists of.

Rooms are numbered `ROOMS * row + column`, also where a level has fewer than 3x3.
"""

from dataclasses import dataclass

from envs_jax.babyai.codes import COLORS, GO_TO, OPEN, PICK_UP, PUT_NEXT, SINGLE

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


def wall(room: int, side: int) -> int:
    """Returns the number of a wall, counted between rooms of a row first; -1 for an outer wall of 3x3 rooms."""
    row, column = divmod(room, ROOMS)
    if side in (TO_RIGHT, TO_LEFT):
        column -= side == TO_LEFT
        return (ROOMS - 1) * row + column if 0 <= column < ROOMS - 1 else -1
    row -= side == UP
    return ROOMS * (ROOMS - 1) + ROOMS * row + column if 0 <= row < ROOMS - 1 else -1


LOCKED = 2 * ROOMS * (ROOMS - 1)
"""In place of a wall: the one with the door of the locked room."""


@dataclass(frozen=True)
class Step:
    """One placement.

    Attributes:
        pairs: bits of what it may be, each `form * COLORS + color`; 0 for the agent.
        rooms: where it may be; all rooms if empty.
        locked: `EVERYWHERE`, `OUTSIDE` or `INSIDE`. A step that has no room left is left out.
        key_of: it is the key of the door in this wall, and left out if there is none.
        unique: it differs from everything before it.
        hides_key: it holds the key of the locked door.
        blocks: it lies directly to the left of the locked door.
        late: it comes after the check of what is reachable.
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
class Lock:
    """A door that locks one room, with a probability; the choice among (room, side) goes by weights."""

    choices: tuple[tuple[int, int, float], ...]
    probability: float = 1.0


@dataclass(frozen=True)
class Choice:
    """Things that a mission may name: by their steps, and doors by their walls."""

    steps: tuple[int, ...] = ()
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
        opened: walls that are removed, before the placements or after them.
        connects: closed doors are added at random walls until all rooms are connected.
        avoids_color: with probability 1/2, doors so added do not have the color of the locked door.
        faces_added, faces_doors: the agent is placed before doors are added, or before all doors, and may face one.
        limit: most primitive actions; 0 for MiniGrid's rule, which depends on the mission.
    """

    name: str
    steps: tuple[Step, ...]
    mission: Goal | Grammar
    room_size: int = 8
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
        things = [step for step in self.steps if step.pairs]
        # Steps bound to a room outside of the locked one: one room's are left out.
        bound = sum(step.locked == OUTSIDE and len(step.rooms) == 1 for step in things)
        count = len(things) - bound // len(self.rooms) + sum(step.hides_key for step in things)
        if not self.connects:
            return count + len(self.doors) + bool(self.lock.choices)
        # The last door added connects two parts; without it, all walls between them are without a door.
        doors, doors_if_locked = {(3, 3): (11, 10), (2, 3): (6, 6), (2, 2): (3, 3)}[self.rows, self.columns]
        keys = sum(step.key_of == LOCKED for step in things)
        with_lock = count + doors_if_locked if self.lock.probability > 0 else 0
        return max(with_lock, count - keys + doors if self.lock.probability < 1 else 0)
