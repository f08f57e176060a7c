"""Recipes of the forty levels: their things in the order in which MiniGrid 2.3.1 places them, and their missions."""

import functools
from typing import Any

from envs_jax.babyai.codes import (
    BEFORE,
    CLOSED_DOOR,
    COLOR_NAMES,
    GO_TO,
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
    CENTER,
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
    Agent,
    Choice,
    Goal,
    Grammar,
    Lock,
    Recipe,
    Thing,
    around,
    key,
    lock_of_rooms,
    lock_of_sides,
    pairs,
    sides,
    things,
    wall,
)

_RED, _BLUE = COLOR_NAMES.index("red"), COLOR_NAMES.index("blue")
_DISTINCT, _RANDOM = range(DISTINCT, DISTINCT + 4), (RANDOM,) * 4
_DOORS = Choice(walls=tuple(range(LOCKED)))
_ONE_ROOM: dict[str, Any] = {"rows": 1, "columns": 1}
_TWO_ROOMS: dict[str, Any] = {"rows": 1, "columns": 2}
_FOUR_ROOMS: dict[str, Any] = {"rows": 2, "columns": 2, "connects": True}
# The agent is placed before the doors.
_MAZE: dict[str, Any] = {"connects": True, "faces_added": True}
_LOCKED_MAZE: dict[str, Any] = {"lock": lock_of_rooms(), "connects": True, "reach": ALL}
_HALF_LOCKED_MAZE: dict[str, Any] = {"lock": lock_of_sides(0.5), "connects": True}
_FIRST, _LAST, _CENTER, _OUTSIDE = Agent(first=True), Agent(), Agent((CENTER,)), Agent(locked=OUTSIDE)
_IN_LEFT, _FIRST_IN_LEFT = Agent((0,)), Agent((0,), first=True)
_LEFT, _RIGHT, _ABOVE, _BELOW = (wall(CENTER, side) for side in (TO_LEFT, TO_RIGHT, UP, DOWN))
_NEXT, _OVER_NEXT = wall(0, TO_RIGHT), wall(1, TO_RIGHT)
_LOCKED_NEXT = Lock(((0, TO_RIGHT, 1),))
_LOCKED_CENTER = Lock(tuple((room, side, 1) for room, side in sides() if room == CENTER))
_LOCKED_RIGHT = Lock(tuple((room, side, 1) for room, side in sides() if room % ROOMS == 2 and side == TO_LEFT))


def _one_of(first: int, count: int = 1) -> Choice:
    return Choice(tuple(range(first, first + count)))


def _first(verb: int, **options) -> Goal:
    """About the first thing."""
    return Goal(verb, (_one_of(0),), **options)


def _any(verb: int, count: int) -> Goal:
    """About any thing."""
    return Goal(verb, (_one_of(0, count),))


_TYPE_OF_FIRST = _first(PICK_UP, by=BY_TYPE)
_THE_DOOR, _ANY_DOOR = Goal(OPEN, (_DOORS,), BY_TYPE), Goal(OPEN, (_DOORS,))


def _general(count: int) -> tuple[Thing, ...]:
    return key(locked=OUTSIDE) + things(count)


def _locked(count: int, upstream: bool) -> tuple[Thing, ...]:
    """A key, and things in each room but the locked one; upstream compares rooms such that it is no exception."""
    locked = EVERYWHERE if upstream else OUTSIDE
    in_rooms = [things(count, room, locked=locked) for room in range(ROOMS * ROOMS)]
    return key(locked=locked) + sum(in_rooms, ())


@functools.cache
def recipes(upstream: bool = False) -> dict[int, Recipe]:
    """Returns the recipe of each number; with `upstream`, with the slips of MiniGrid."""
    red_ball, one_ball = things(name="red ball"), things(name="ball")
    others, red_or_blue = Thing(pairs("") & ~pairs("red ball", "blue ball")), Thing(pairs("red ball", "blue ball"))
    box_next, ball_in_way = things(1, 1, name="box"), things(1, 0, name="ball", blocks=True)
    crossed_keys = things(1, 0, name="ball") + key(2, of=_NEXT) + key(1, of=_OVER_NEXT)
    in_left, in_right = _one_of(0, 9), _one_of(9, 9)
    red_then_blue = Goal(
        OPEN, (Choice(walls=(_LEFT,)), Choice(), Choice(walls=(_RIGHT,))), strict=(True, False), order=BEFORE
    )
    in_any_order = Goal(OPEN, (_DOORS, Choice(), _DOORS), strict=(True, True), order=None)
    locked_door = Goal(OPEN, (Choice(walls=_DOORS.walls, only_locked=True),))
    by_some = Goal(PICK_UP, (_one_of(0, 5),), BY_SOME, strict=(True, False))
    carried = Goal(PUT_NEXT, (_one_of(0, 4), _one_of(4, 4)), swaps=True, carries=True)
    distinct_doors = around(CLOSED_DOOR, *_DISTINCT)
    red_and_blue = ((_LEFT, CLOSED_DOOR, _RED), (_RIGHT, CLOSED_DOOR, _BLUE))
    go_to_eighth = Goal(GO_TO, (_one_of(7),))
    going = Grammar(verbs=(GO_TO,), places=False, spares_keys=False)
    picking_up = Grammar(verbs=(PICK_UP,), kinds=(ACT,), spares_keys=False)
    # Taking anything else fails, so that nothing can be moved out of the way.
    reach = UNCHECKED if upstream else TARGET
    five_or_doors, eight_or_doors = (Choice(tuple(range(count)), _DOORS.walls) for count in (5, 8))
    levels = (
        Recipe("GoToRedBallGrey", 8, _FIRST, red_ball + things(7, name="grey"), _first(GO_TO), reach=ALL, **_ONE_ROOM),
        Recipe("GoToRedBall", 8, _FIRST, red_ball + things(7), _first(GO_TO), reach=ALL, **_ONE_ROOM),
        Recipe("GoToRedBallNoDists", 8, _FIRST, red_ball, _first(GO_TO), reach=ALL, **_ONE_ROOM),
        Recipe("GoToObjS6", 4, _FIRST, things(), _first(GO_TO), **_ONE_ROOM),
        Recipe("GoToLocalS8N7", 8, _FIRST, things(7), _any(GO_TO, 7), reach=ALL, **_ONE_ROOM),
        Recipe("GoToObjMazeS7", 7, _FIRST, things(), _first(GO_TO), reach=ALL, **_MAZE),
        Recipe(
            "GoToImpUnlock",
            8,
            _OUTSIDE,
            _locked(2, upstream) + things(locked=INSIDE, late=True),
            Goal(GO_TO, (_one_of(1 + 2 * ROOMS * ROOMS),)),
            **_LOCKED_MAZE,
        ),
        Recipe("GoToSeqS5R2", 5, _LAST, things(4), going, reach=ALL, **_FOUR_ROOMS),
        # MiniGrid rejects layouts in which one of the seven is a red or blue ball.
        Recipe("GoToRedBlueBall", 8, _FIRST, (others,) * 7 + (red_or_blue,), go_to_eighth, reach=ALL, **_ONE_ROOM),
        Recipe("GoToDoor", 7, _CENTER, (), Goal(GO_TO, (_DOORS,)), doors=around(EITHER, *_RANDOM)),
        Recipe(
            "GoToObjDoor",
            8,
            Agent((CENTER,), first=True),
            things(8, CENTER),
            Goal(GO_TO, (eight_or_doors,)),
            doors=around(EITHER, *_RANDOM),
            faces_doors=True,
            reach=ALL,
        ),
        Recipe("Open", 8, _FIRST, things(18), _ANY_DOOR, reach=ALL, **_MAZE),
        Recipe("OpenRedDoor", 5, _IN_LEFT, (), _ANY_DOOR, doors=((_NEXT, CLOSED_DOOR, _RED),), **_TWO_ROOMS),
        Recipe("OpenDoorLoc", 8, _CENTER, (), Goal(OPEN, (_DOORS,), BY_PLACE), doors=distinct_doors),
        Recipe("OpenRedBlueDoorsDebug", 6, _CENTER, (), red_then_blue, doors=red_and_blue, limit=20 * 6**2),
        Recipe("OpenDoorsOrderN4Debug", 6, _CENTER, (), in_any_order, doors=distinct_doors, limit=20 * 6**2),
        Recipe("Pickup", 8, _FIRST, things(18), _any(PICK_UP, 18), reach=ALL, **_MAZE),
        Recipe("UnblockPickup", 8, _FIRST, things(20), _any(PICK_UP, 20), reach=NOT_ALL, **_MAZE),
        Recipe("PickupLoc", 8, _LAST, things(8), picking_up, reach=ALL, **_ONE_ROOM),
        Recipe("PickupDistDebug", 7, _LAST, things(5, unique=True), by_some, reach=reach, **_ONE_ROOM),
        Recipe(
            "PickupAbove",
            6,
            _CENTER,
            things(1, CENTER - ROOMS),
            _first(PICK_UP),
            doors=((_ABOVE, CLOSED_DOOR, RANDOM),),
            limit=8 * 6**2,
            **_MAZE,
        ),
        Recipe(
            "PutNextLocalS6N4",
            6,
            _FIRST,
            things(4, unique=True),
            Goal(PUT_NEXT, (_one_of(0, 4),) * 2),
            reach=ALL,
            **_ONE_ROOM,
        ),
        Recipe(
            "PutNextS7N4Carrying",
            7,
            _FIRST_IN_LEFT,
            things(4, 0, unique=True) + things(4, 1, unique=True),
            carried,
            opened=(_NEXT,),
            limit=8 * 7**2,
            **_TWO_ROOMS,
        ),
        Recipe("Unlock", 8, _OUTSIDE, _locked(3, upstream), locked_door, avoids_color=True, **_LOCKED_MAZE),
        Recipe(
            "UnlockLocalDist", 8, _CENTER, key(CENTER) + things(3, CENTER, unique=True), _THE_DOOR, lock=_LOCKED_CENTER
        ),
        Recipe("KeyInBox", 8, _CENTER, things(1, CENTER, name="box", hides_key=True), _THE_DOOR, lock=_LOCKED_CENTER),
        Recipe(
            "UnlockPickupDist",
            6,
            _IN_LEFT,
            box_next + key(0) + things(4, unique=True),
            _first(PICK_UP),
            lock=_LOCKED_NEXT,
            limit=0 if upstream else 8 * 6**2,
            **_TWO_ROOMS,
        ),
        Recipe(
            "BlockedUnlockPickup",
            6,
            _IN_LEFT,
            box_next + ball_in_way + key(0),
            _TYPE_OF_FIRST,
            lock=_LOCKED_NEXT,
            limit=16 * 6**2,
            **_TWO_ROOMS,
        ),
        Recipe(
            "UnlockToUnlock",
            6,
            Agent((1,)),
            crossed_keys,
            _TYPE_OF_FIRST,
            rows=1,
            doors=((_NEXT, LOCKED_DOOR, DISTINCT), (_OVER_NEXT, LOCKED_DOOR, DISTINCT + 1)),
            limit=30 * 6**2,
        ),
        Recipe(
            "ActionObjDoor",
            7,
            _CENTER,
            things(5, CENTER, unique=True),
            Goal(NO_VERB, (five_or_doors,)),
            doors=around(CLOSED_DOOR, *_RANDOM),
        ),
        Recipe("FindObjS7", 7, _CENTER, things(), _TYPE_OF_FIRST, limit=20 * 7**2, **_MAZE),
        Recipe(
            "KeyCorridorS6R3",
            6,
            _CENTER,
            things(name="ball", locked=INSIDE) + key(0, ROOMS, 2 * ROOMS),
            _TYPE_OF_FIRST,
            lock=_LOCKED_RIGHT,
            opened=(_ABOVE, _BELOW),
            opened_first=True,
            limit=30 * 6**2,
            **_MAZE,
        ),
        Recipe("OneRoomS20", 20, _LAST, one_ball, _TYPE_OF_FIRST, **_ONE_ROOM),
        Recipe(
            "MoveTwoAcrossS8N9",
            8,
            _FIRST_IN_LEFT,
            things(9, 0, unique=True) + things(9, 1, unique=True),
            Goal(PUT_NEXT, (in_left, in_right, in_right, in_left), order=BEFORE),
            opened=(_NEXT,),
            limit=16 * 8**2,
            **_TWO_ROOMS,
        ),
        Recipe(
            "SynthS5R2",
            5,
            _OUTSIDE,
            _general(18),
            Grammar(kinds=(ACT,), places=False, unlocks=False),
            rows=2,
            lock=lock_of_sides(0.5, rows=2),
            connects=True,
        ),
        Recipe("SynthLoc", 8, _OUTSIDE, _general(18), Grammar(kinds=(ACT,), unlocks=False), **_HALF_LOCKED_MAZE),
        Recipe("SynthSeq", 8, _OUTSIDE, _general(18), Grammar(unlocks=False), **_HALF_LOCKED_MAZE),
        Recipe("MiniBossLevel", 5, _OUTSIDE, _general(7), Grammar(), lock=lock_of_sides(0.25, 2, 2), **_FOUR_ROOMS),
        Recipe("BossLevel", 8, _OUTSIDE, _general(18), Grammar(), **_HALF_LOCKED_MAZE),
        Recipe("BossLevelNoUnlock", 8, _LAST, things(18), Grammar(unlocks=False), connects=True),
    )
    return dict(enumerate(levels, 1))


NAMES = {number: recipe.name for number, recipe in recipes().items()}
"""Names of the levels, without "BabyAI-" and "-v0"."""
