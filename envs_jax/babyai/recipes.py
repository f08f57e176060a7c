"""Recipes of the forty levels: their objects in the order in which MiniGrid 2.3.1 places them, and their missions."""

from envs_jax.babyai.codes import (
    BEFORE,
    CLOSED_DOOR,
    COLOR_NAMES,
    COLORS,
    FORMS,
    GO_TO,
    KEY,
    LOCKED_DOOR,
    NO_VERB,
    OPEN,
    PICK_UP,
    PUT_NEXT,
)
from envs_jax.babyai.parts import (
    ACT,
    ALL,
    BY_PLACE,
    BY_SOME,
    BY_TYPE,
    DISTINCT,
    DOWN,
    EITHER,
    EVERYWHERE,
    INSIDE,
    LOCKED,
    NOT_ALL,
    OUTSIDE,
    RANDOM,
    ROOMS,
    TARGET,
    TO_LEFT,
    TO_RIGHT,
    UNCHECKED,
    UP,
    Choice,
    Goal,
    Grammar,
    Lock,
    Recipe,
    Step,
    wall,
)


def _pairs(*names: str) -> int:
    """Bits of the pairs that fit a name: a form, a color, both, or neither."""
    bits = 0
    for name in names:
        words = name.split()
        for form in range(3):
            for color in range(COLORS):
                if set(words) <= {FORMS[form], COLOR_NAMES[color]}:
                    bits |= 1 << form * COLORS + color
    return bits


def _things(name: str = "", *rooms: int, count: int = 1, **options) -> tuple[Step, ...]:
    return (Step(_pairs(name), rooms, **options),) * count


def _agent(*rooms: int, **options) -> tuple[Step, ...]:
    return (Step(0, rooms, **options),)


def _key(*rooms: int, of: int = LOCKED, **options) -> tuple[Step, ...]:
    return (Step(_pairs(FORMS[KEY]), rooms, key_of=of, **options),)


def _in_each_room(count: int, upstream: bool) -> tuple[Step, ...]:
    """Objects in all rooms but the locked one; upstream compares rooms such that they are in all."""
    locked = EVERYWHERE if upstream else OUTSIDE
    return tuple(Step(_pairs(""), (room,), locked) for room in range(ROOMS * ROOMS) for _ in range(count))


_CENTER = ROOMS + 1
_AROUND = tuple(wall(_CENTER, side) for side in range(4))
_ALL_WALLS = tuple(range(LOCKED))
_SIDES = [(room, side) for room in range(ROOMS * ROOMS) for side in range(4)]
_LAST_COLUMN = range(ROOMS - 1, ROOMS * ROOMS, ROOMS)


def _lock_of_sides(probability: float, rows: int = ROOMS, columns: int = ROOMS) -> Lock:
    """A uniform (room, side) with a neighbor."""
    rooms = {ROOMS * row + column for row in range(rows) for column in range(columns)}
    beside = {TO_RIGHT: 1, DOWN: ROOMS, TO_LEFT: -1, UP: -ROOMS}
    sides = [(r, s) for r, s in _SIDES if r in rooms and wall(r, s) >= 0 and r + beside[s] in rooms]
    return Lock(tuple((r, s, 1.0) for r, s in sides), probability)


def _lock_of_rooms() -> Lock:
    """A uniform room, then a uniform side with a neighbor."""
    neighbors = {room: sum(wall(room, side) >= 0 for side in range(4)) for room, _ in _SIDES}
    return Lock(tuple((r, s, 1 / neighbors[r]) for r, s in _SIDES if wall(r, s) >= 0))


def _steps(first: int, count: int) -> Choice:
    return Choice(steps=tuple(range(first, first + count)))


def _single_room(name: str, steps: tuple[Step, ...], mission: Goal | Grammar, **options) -> Recipe:
    return Recipe(name, steps, mission, rows=1, columns=1, **options)


def _doors_around(form: int, *colors: int) -> tuple[tuple[int, int, int], ...]:
    """Doors on the four sides of the room in the middle."""
    return tuple((wall(_CENTER, side), form, color) for side, color in zip(range(4), colors))


def recipes(upstream: bool = False) -> dict[int, Recipe]:
    """Returns the recipe of each number; with `upstream`, with the slips of MiniGrid."""
    agent, center = _agent(), _agent(_CENTER)
    red_ball = Goal(GO_TO, (_steps(1, 1),))
    first_of_all, all_doors = Goal(PICK_UP, (_steps(0, 1),), BY_TYPE), Choice(walls=_ALL_WALLS)
    the_door, locked_door = Goal(OPEN, (all_doors,), BY_TYPE), Goal(OPEN, (Choice((), _ALL_WALLS, True),))
    right, left = wall(0, TO_RIGHT), wall(_CENTER, TO_LEFT)
    across = wall(1, TO_RIGHT)
    red, blue = COLOR_NAMES.index("red"), COLOR_NAMES.index("blue")
    no_red_nor_blue_ball = (Step(_pairs("") & ~_pairs("red ball", "blue ball")),)
    any_colors, distinct_colors = (RANDOM,) * 4, range(DISTINCT, DISTINCT + 4)
    center_lock = Lock(tuple((_CENTER, side, 1.0) for side in range(4)))
    left_lock = Lock(((0, TO_RIGHT, 1.0),))
    maze = dict(connects=True, faces_added=True)
    one_of_two, next_two = _steps(1, 4), _steps(5, 4)
    from_left, from_right = _steps(1, 9), _steps(10, 9)

    def locked(objects: int) -> tuple[Step, ...]:
        return (
            *_key(locked=EVERYWHERE if upstream else OUTSIDE),
            *_in_each_room(objects, upstream),
            *_agent(locked=OUTSIDE),
        )

    def general(objects: int) -> tuple[Step, ...]:
        return (*_key(locked=OUTSIDE), *_things(count=objects), *_agent(locked=OUTSIDE))

    return {
        1: _single_room(
            "GoToRedBallGrey", (*agent, *_things("red ball"), *_things("grey", count=7)), red_ball, reach=ALL
        ),
        2: _single_room("GoToRedBall", (*agent, *_things("red ball"), *_things(count=7)), red_ball, reach=ALL),
        3: _single_room("GoToRedBallNoDists", (*agent, *_things("red ball")), red_ball, reach=ALL),
        4: _single_room("GoToObjS6", (*agent, *_things()), red_ball, room_size=4),
        5: _single_room("GoToLocalS8N7", (*agent, *_things(count=7)), Goal(GO_TO, (_steps(1, 7),)), reach=ALL),
        6: Recipe("GoToObjMazeS7", (*agent, *_things()), red_ball, room_size=7, reach=ALL, **maze),
        7: Recipe(
            "GoToImpUnlock",
            (*locked(2), *_things(locked=INSIDE, late=True)),
            Goal(GO_TO, (_steps(2 + 2 * ROOMS * ROOMS, 1),)),
            lock=_lock_of_rooms(),
            connects=True,
            reach=ALL,
        ),
        8: Recipe(
            "GoToSeqS5R2",
            (*_things(count=4), *agent),
            Grammar(verbs=(GO_TO,), places=False, spares_keys=False),
            room_size=5,
            rows=2,
            columns=2,
            connects=True,
            reach=ALL,
        ),
        9: _single_room(
            "GoToRedBlueBall",
            (*agent, *no_red_nor_blue_ball * 7, Step(_pairs("red ball", "blue ball"))),
            Goal(GO_TO, (_steps(8, 1),)),
            reach=ALL,
        ),
        10: Recipe(
            "GoToDoor", center, Goal(GO_TO, (all_doors,)), room_size=7, doors=_doors_around(EITHER, *any_colors)
        ),
        11: Recipe(
            "GoToObjDoor",
            (*center, *_things("", _CENTER, count=8)),
            Goal(GO_TO, (Choice(tuple(range(1, 9)), _ALL_WALLS),)),
            doors=_doors_around(EITHER, *any_colors),
            faces_doors=True,
            reach=ALL,
        ),
        12: Recipe("Open", (*agent, *_things(count=18)), Goal(OPEN, (all_doors,)), reach=ALL, **maze),
        13: Recipe(
            "OpenRedDoor",
            _agent(0),
            Goal(OPEN, (all_doors,)),
            room_size=5,
            rows=1,
            columns=2,
            doors=((right, CLOSED_DOOR, red),),
        ),
        14: Recipe(
            "OpenDoorLoc",
            center,
            Goal(OPEN, (all_doors,), BY_PLACE),
            doors=_doors_around(CLOSED_DOOR, *distinct_colors),
        ),
        15: Recipe(
            "OpenRedBlueDoorsDebug",
            center,
            Goal(
                OPEN,
                (Choice(walls=(left,)), Choice(), Choice(walls=(left + 1,))),
                strict=(True, False),
                order=BEFORE,
            ),
            room_size=6,
            doors=((left, CLOSED_DOOR, red), (left + 1, CLOSED_DOOR, blue)),
            limit=20 * 6**2,
        ),
        16: Recipe(
            "OpenDoorsOrderN4Debug",
            center,
            Goal(OPEN, (all_doors, Choice(), all_doors), strict=(True, True), order=None),
            room_size=6,
            doors=_doors_around(CLOSED_DOOR, *distinct_colors),
            limit=20 * 6**2,
        ),
        17: Recipe("Pickup", (*agent, *_things(count=18)), Goal(PICK_UP, (_steps(1, 18),)), reach=ALL, **maze),
        18: Recipe(
            "UnblockPickup", (*agent, *_things(count=20)), Goal(PICK_UP, (_steps(1, 20),)), reach=NOT_ALL, **maze
        ),
        19: _single_room(
            "PickupLoc",
            (*_things(count=8), *agent),
            Grammar(verbs=(PICK_UP,), kinds=(ACT,), spares_keys=False),
            reach=ALL,
        ),
        20: _single_room(
            "PickupDistDebug",
            (*_things(count=5, unique=True), *agent),
            Goal(PICK_UP, (_steps(0, 5),), BY_SOME, strict=(True, False)),
            room_size=7,
            # Taking anything else fails, so that nothing can be moved out of the way.
            reach=UNCHECKED if upstream else TARGET,
        ),
        21: Recipe(
            "PickupAbove",
            (*_things("", _CENTER - ROOMS), *center),
            Goal(PICK_UP, (_steps(0, 1),)),
            room_size=6,
            doors=((wall(_CENTER, UP), CLOSED_DOOR, RANDOM),),
            limit=8 * 6**2,
            **maze,
        ),
        22: _single_room(
            "PutNextLocalS6N4",
            (*agent, *_things(count=4, unique=True)),
            Goal(PUT_NEXT, (_steps(1, 4), _steps(1, 4))),
            room_size=6,
            reach=ALL,
        ),
        23: Recipe(
            "PutNextS7N4Carrying",
            (*_agent(0), *_things("", 0, count=4, unique=True), *_things("", 1, count=4, unique=True)),
            Goal(PUT_NEXT, (one_of_two, next_two), swaps=True, carries=True),
            room_size=7,
            rows=1,
            columns=2,
            opened=(right,),
            limit=8 * 7**2,
        ),
        24: Recipe(
            "Unlock", locked(3), locked_door, lock=_lock_of_rooms(), connects=True, avoids_color=True, reach=ALL
        ),
        25: Recipe(
            "UnlockLocalDist",
            (*_key(_CENTER), *_things("", _CENTER, count=3, unique=True), *center),
            the_door,
            lock=center_lock,
        ),
        26: Recipe("KeyInBox", (*_things("box", _CENTER, hides_key=True), *center), the_door, lock=center_lock),
        27: Recipe(
            "UnlockPickupDist",
            (*_things("box", 1), *_key(0), *_things(count=4, unique=True), *_agent(0)),
            Goal(PICK_UP, (_steps(0, 1),)),
            room_size=6,
            rows=1,
            columns=2,
            lock=left_lock,
            limit=0 if upstream else 8 * 6**2,
        ),
        28: Recipe(
            "BlockedUnlockPickup",
            (*_things("box", 1), *_things("ball", 0, blocks=True), *_key(0), *_agent(0)),
            first_of_all,
            room_size=6,
            rows=1,
            columns=2,
            lock=left_lock,
            limit=16 * 6**2,
        ),
        29: Recipe(
            "UnlockToUnlock",
            (*_key(2, of=right), *_key(1, of=across), *_things("ball", 0), *_agent(1)),
            Goal(PICK_UP, (_steps(2, 1),), BY_TYPE),
            room_size=6,
            rows=1,
            doors=((right, LOCKED_DOOR, DISTINCT), (across, LOCKED_DOOR, DISTINCT + 1)),
            limit=30 * 6**2,
        ),
        30: Recipe(
            "ActionObjDoor",
            (*_things("", _CENTER, count=5, unique=True), *center),
            Goal(NO_VERB, (Choice(tuple(range(5)), _ALL_WALLS),)),
            room_size=7,
            doors=_doors_around(CLOSED_DOOR, *any_colors),
        ),
        31: Recipe("FindObjS7", (*_things(), *center), first_of_all, room_size=7, limit=20 * 7**2, **maze),
        32: Recipe(
            "KeyCorridorS6R3",
            (*_things("ball", locked=INSIDE), *_key(0, ROOMS, 2 * ROOMS), *center),
            first_of_all,
            room_size=6,
            lock=Lock(tuple((room, TO_LEFT, 1.0) for room in _LAST_COLUMN)),
            opened=(wall(_CENTER, UP), wall(_CENTER, DOWN)),
            opened_first=True,
            limit=30 * 6**2,
            **maze,
        ),
        33: _single_room("OneRoomS20", (*_things("ball"), *agent), first_of_all, room_size=20),
        34: Recipe(
            "MoveTwoAcrossS8N9",
            (*_agent(0), *_things("", 0, count=9, unique=True), *_things("", 1, count=9, unique=True)),
            Goal(PUT_NEXT, (from_left, from_right, from_right, from_left), order=BEFORE),
            rows=1,
            columns=2,
            opened=(right,),
            limit=16 * 8**2,
        ),
        35: Recipe(
            "SynthS5R2",
            general(18),
            Grammar(kinds=(ACT,), places=False, unlocks=False),
            room_size=5,
            rows=2,
            lock=_lock_of_sides(0.5, rows=2),
            connects=True,
        ),
        36: Recipe(
            "SynthLoc", general(18), Grammar(kinds=(ACT,), unlocks=False), lock=_lock_of_sides(0.5), connects=True
        ),
        37: Recipe("SynthSeq", general(18), Grammar(unlocks=False), lock=_lock_of_sides(0.5), connects=True),
        38: Recipe(
            "MiniBossLevel",
            general(7),
            Grammar(),
            room_size=5,
            rows=2,
            columns=2,
            lock=_lock_of_sides(0.25, rows=2, columns=2),
            connects=True,
        ),
        39: Recipe("BossLevel", general(18), Grammar(), lock=_lock_of_sides(0.5), connects=True),
        40: Recipe("BossLevelNoUnlock", (*_things(count=18), *agent), Grammar(unlocks=False), connects=True),
    }


NAMES = {number: recipe.name for number, recipe in recipes().items()}
"""Names of the levels, without "BabyAI-" and "-v0"."""
