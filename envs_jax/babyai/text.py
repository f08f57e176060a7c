"""The text of BabyAI as AgentGym shows it: goal, observation, answers to actions, and the list of actions.

Shapes: `P` pieces of an observation, `M` objects in view.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int32

from envs_jax.babyai import macros
from envs_jax.babyai.codes import (
    AFTER,
    ANY,
    CLOSED_DOOR,
    COLOR_NAMES,
    COLORS,
    GO_TO,
    NAMES,
    NO_VERB,
    OBJECT,
    OPEN_DOOR,
    PLACES,
    PUT_NEXT,
    TYPE_NAMES,
)
from envs_jax.babyai.state import BabyAIState, Mission, Notice, Progress, Surroundings, World
from envs_jax.babyai.view import MIDDLE, SIZE
from envs_jax.environment import NO_PIECE

INSTRUCTION = (
    "You are in a building of rooms, and you are given a goal. Each round you see what is in front of you and the "
    "actions that you can take; answer with one of them. Go through an open door; toggle a closed door first. A locked "
    "door opens if you carry the key of its color. You can carry one thing at a time."
)

PRIMITIVE_INSTRUCTION = (
    "You are in a building of rooms, and you are given a goal. Each round you see what is in front of you. Pick up, "
    "drop and toggle act on the place right in front of you. Toggling opens or closes a door; a locked door opens if "
    "you carry the key of its color. You can carry one thing at a time."
)

(
    SEEN,
    NOT_RECOGNIZED,
    NO_CHANGE,
    CHECKED,
    BARRIER,
    NOT_EMPTY,
    NOT_CARRYING,
    NO_PATH,
    CLOSED,
    NO_KEY,
    WRONG_KEY,
) = range(11)
"""Codes of `Notice`: an observation, or why there is none."""

_SENTENCES = {
    NOT_RECOGNIZED: "The action is not recognized. Please check valid actions.",
    NO_CHANGE: "No change in state.",
    BARRIER: "There is a barrier in front of you, you can't move forward.",
    NOT_EMPTY: "You cannot drop the object, as there is already an object in front of you.",
    NOT_CARRYING: "You cannot drop the object, as you are not carrying anything.",
}
_REASONS = {
    NO_PATH: ", as there is no path leading to it.",
    CLOSED: ", as it is closed. You should toggle it first.",
    NO_KEY: ", as you are not carrying a key.",
    WRONG_KEY: ", as the color of the key you are carrying does not match the color of door.",
}
_NOUNS = tuple(
    f"{color} {kind}".strip() for color in ("", *COLOR_NAMES) for kind in ("object", *TYPE_NAMES)
)  # by (color + 1) * 5 + type + 1
_PLACE_TEXTS = tuple(f" {place}" for place in ("on your left", "on your right", "in front of you", "behind you"))
MOST_NUMBER = 20


def _where(front: int, side: int) -> str:
    if side == 0:
        return f" right in front of you {front} steps away.  "
    return f" {front} steps in front of you and {abs(side)} steps to your {'right' if side > 0 else 'left'}.  "


class _Pieces:
    """The table of pieces; attributes are the id of the first piece of a kind."""

    def __init__(self) -> None:
        self.all: list[str] = []
        self.goal = self._add(["Your goal: "])
        self.verbs = self._add(["go to ", "open ", "pick up ", "put "])
        self.articles = self._add(["the ", "a "])
        self.nouns = self._add(_NOUNS)
        self.places = self._add(_PLACE_TEXTS)
        self.joints = self._add([" next to ", " and ", ", and ", "\n"])
        self.heading = self._add(["In front of you in this room, you can see several objects: "])
        self.nothing = self._add(["You cannot see any objects within sight."])
        self.there_is = self._add(["There is a "])
        self.names = self._add(NAMES)
        self.numbers = self._add(f" {number}" for number in range(1, MOST_NUMBER + 1))
        self.wheres = self._add(
            _where(SIZE - 1 - row, column - MIDDLE) for row in range(SIZE) for column in range(SIZE)
        )
        self.walls = self._add(["The room has walls around you. "])
        self.barriers = self._add(
            f"You are facing a {kind} {steps} steps away. " for kind in ("wall", "box") for steps in range(1, SIZE)
        )
        self.not_carrying = self._add(["You are not carrying anything."])
        self.carrying = self._add(["You are carrying a ", "."])
        self.completed = self._add(["\n The task is completed."])
        self.sentences = self._add(_SENTENCES.values())
        self.cannot = self._add(f"You cannot {verb}" for verb in macros.VERBS)
        self.reasons = self._add(_REASONS.values())
        self.count = self._add([" {'", "': ", ", '", "}"])
        self.counts = self._add(f"{number}" for number in range(1, MOST_NUMBER + 1))
        self.quoted = self._add_list('\nAvailable actions: ["turn left", "turn right"', ', "', '"', "]")
        self.checked = self._add_list("You can take the following actions: turn left, turn right", ", ", "", "")

    def _add(self, texts: Iterable[str]) -> int:
        first = len(self.all)
        self.all.extend(texts)
        return first

    def _add_list(self, heading: str, before: str, after: str, end: str) -> tuple[int, int, int, int]:
        """Pieces of a list of actions: heading, the simple actions, the verbs, and the numbers."""
        simple = (
            f"{before}{macros.SIMPLE_NAMES[i]}{after}" for i in (macros.MOVE_FORWARD, macros.DROP_IT, macros.TOGGLE_IT)
        )
        return (
            self._add([heading]),
            self._add([*simple, f"{before}{macros.SIMPLE_NAMES[macros.CHECK]}{after}{end}"]),
            self._add(before + verb for verb in macros.VERBS),
            self._add(f" {number}{after}" for number in range(1, MOST_NUMBER + 1)),
        )


_P = _Pieces()
PIECES = tuple(_P.all)


def piece_limits(most: int, clauses: int) -> tuple[int, ...]:
    """Returns the most occurrences of each piece in an observation of at most `most` objects."""
    limits = np.ones(len(PIECES), int)

    def allow(first: int, number: int, times: int) -> None:
        limits[first : first + number] = times

    allow(_P.verbs, 4, clauses)
    for first, number in ((_P.articles, 2), (_P.nouns, len(_NOUNS)), (_P.places, len(PLACES)), (_P.joints, 3)):
        allow(first, number, 2 * clauses)
    allow(_P.there_is, 1, most)
    # A name is in an observation or a list, and in the list of actions up to three times.
    for first, number in ((_P.names, len(NAMES)), (_P.numbers, MOST_NUMBER)):
        allow(first, number, 5 * most + 1)
    for list_pieces in (_P.quoted, _P.checked):
        allow(list_pieces[2], len(macros.VERBS), most)
        allow(list_pieces[3], MOST_NUMBER, 3 * most)
    allow(_P.count, 4, most)
    allow(_P.counts, MOST_NUMBER, most)
    return tuple(limits.tolist())


def describe(
    state: BabyAIState, shows_goal: Bool[Array, ""], clauses: int, *, upstream: bool, lists_actions: bool = True
) -> Int32[Array, " P"]:
    """Returns the pieces of what the agent is shown, with `NO_PIECE` between them.

    The goal, if it is shown, has up to `clauses` clauses. The actions are listed at the end with `lists_actions`.
    With `upstream`, a number in two answers is what AgentGym prints there, the counts of the doors in view, and the
    listed actions are AgentGym's.
    """
    world, notice = state.world, state.notice
    seen = state.seen
    can = macros.listed(world, seen, upstream=upstream)
    goal = jnp.where(shows_goal, _goal(state.mission, state.progress, clauses), NO_PIECE)
    checked = _show(notice.code == CHECKED, _list(_P.checked, can, seen))
    answer = jnp.concatenate([_answer(notice, seen, upstream=upstream), checked])
    observation = _observation(state, seen)
    size = max(len(answer), len(observation))
    answer, observation = (
        jnp.pad(ids, (0, size - len(ids)), constant_values=NO_PIECE) for ids in (answer, observation)
    )
    body = jnp.where(notice.code == SEEN, observation, answer)
    return jnp.concatenate([goal, body, *([_list(_P.quoted, can, seen)] if lists_actions else [])])


def _show(condition: Bool[Array, "*K"], ids: Int[Array, "*K"] | int) -> Int32[Array, "*K"]:
    return jnp.where(condition, ids, NO_PIECE).astype(jnp.int32)


def goal_text(mission: Mission, progress: Progress, clauses: int) -> str:
    """Returns the goal of one (unbatched) state as `describe` shows it, without the newline. Runs on the host."""
    ids = np.asarray(_compiled_goal(mission, progress, clauses)).tolist()
    return "".join(PIECES[i] for i in ids if i != NO_PIECE).rstrip("\n")


def _goal(mission: Mission, progress: Progress, clauses: int) -> Int32[Array, " K"]:
    several = progress.several
    described = mission.described.astype(jnp.int32)

    def thing(clause: int, which: int) -> list[jax.Array]:
        kind, color, place = (described[clause, which, i] for i in range(3))
        shown = mission.verb[clause] == PUT_NEXT if which else mission.verb[clause] != NO_VERB
        noun = _P.nouns + (color + 1) * (len(TYPE_NAMES) + 1) + kind + 1
        article = _P.articles + several[clause, which]
        return [_show(shown, article), _show(shown, noun), _show(shown & (place != ANY), _P.places + place)]

    def one(clause: int) -> list[jax.Array]:
        verb = mission.verb[clause].astype(jnp.int32)
        next_to = _show(verb == PUT_NEXT, _P.joints)
        return [_show(verb != NO_VERB, _P.verbs + verb - GO_TO), *thing(clause, 0), next_to, *thing(clause, 1)]

    ids = [jnp.int32(_P.goal)]
    for clause in range(clauses):
        exists = mission.verb[clause] != NO_VERB
        if clause % 2:
            ids.append(_show(exists, _P.joints + 1))
        elif clause:
            # AgentGym writes "and" for "then" and for "after you".
            ids.append(_show(exists, _P.joints + jnp.where(mission.order == AFTER, 1, 2)))
        ids += one(clause)
    return jnp.stack([*ids, jnp.int32(_P.joints + 3)]).astype(jnp.int32)


_compiled_goal = jax.jit(_goal, static_argnums=2)


def _observation(state: BabyAIState, seen: Surroundings) -> Int32[Array, " K"]:
    world, exists = state.world, seen.name >= 0
    place = (SIZE - 1 - seen.front) * SIZE + seen.side + MIDDLE
    objects = [
        _show(exists, _P.there_is),
        _show(exists, _P.names + seen.name),
        _show(exists, _P.numbers + seen.number - 1),
        _show(exists, _P.wheres + place),
    ]
    barrier = _P.barriers + seen.barrier_is_box * (SIZE - 1) + seen.barrier - 1
    carries, in_hand = world.carrying >= 0, world.slot_cells[world.carrying].astype(jnp.int32) - OBJECT
    after = [
        jnp.int32(_P.walls),
        _show(seen.barrier > 0, barrier),
        jnp.where(carries, _P.carrying, _P.not_carrying),
        _show(carries, _P.names + in_hand),
        _show(carries, _P.carrying + 1),
        _show(state.completed, _P.completed),
    ]
    heading = jnp.where(seen.anything, _P.heading, _P.nothing)[None]
    return jnp.concatenate([heading, jnp.stack(objects, axis=1).reshape(-1), jnp.stack(after)]).astype(jnp.int32)


def _answer(notice: Notice, seen: Surroundings, *, upstream: bool) -> Int32[Array, " K"]:
    """Sentences, and reasons with the action and its number, or its counts."""
    code = notice.code
    reason = code >= NO_PATH
    sentences = [_show(code == one, _P.sentences + index) for index, one in enumerate(_SENTENCES)]
    verb, name, number = macros.split(notice.action)
    counts = jnp.zeros(0, jnp.int32)
    counted = jnp.bool_(False)
    if upstream:
        counted = (code == NO_PATH) & (verb == macros.TOGGLE_THROUGH)
        counts = _show(counted, _door_counts(seen, name, number))
    before = [*sentences, _show(reason, _P.cannot + verb), _show(reason, _P.names + name)]
    after = [_show(reason & ~counted, _P.numbers + number - 1)], [_show(reason, _P.reasons + code - NO_PATH)]
    return jnp.concatenate([jnp.stack(before), jnp.stack(after[0]), counts, jnp.stack(after[1])]).astype(jnp.int32)


def _door_counts(seen: Surroundings, name: Int[Array, ""], number: Int[Array, ""]) -> Int32[Array, " K"]:
    """The doors up to one of them, as a Python dict prints their counts."""
    is_door = seen.name >= OPEN_DOOR * COLORS
    target = jnp.argmax((seen.name == name) & (seen.number == number))
    counted = is_door & (jnp.arange(len(seen.name)) <= target)
    first = counted & (seen.number == 1)
    same = (seen.name[:, None] == seen.name[None]) & counted[None]
    nth = jnp.cumsum(first)
    rows = [
        _show(first, jnp.where(nth == 1, _P.count, _P.count + 2)),
        _show(first, _P.names + seen.name),
        _show(first, _P.count + 1),
        _show(first, _P.counts + jnp.sum(same, axis=1) - 1),
    ]
    end = jnp.array([_P.count + 3], jnp.int32)
    return jnp.concatenate([jnp.stack(rows, axis=1).reshape(-1), end])


def _list(pieces: tuple[int, int, int, int], can: macros.Listed, seen: Surroundings) -> Int32[Array, " K"]:
    heading, simple, verbs, numbers = pieces

    def actions(shown: Bool[Array, " M"], verb: Int[Array, " M"] | int, number: Int[Array, " M"]) -> list[jax.Array]:
        return [
            _show(shown, verbs + verb),
            _show(shown, _P.names + seen.name),
            _show(shown, numbers + number - 1),
        ]

    form = seen.name // COLORS
    door_verb = jnp.where(form == OPEN_DOOR, macros.THROUGH, macros.TOGGLE_THROUGH)
    doors = actions(can.through | can.toggle_through, door_verb, seen.number)
    doors.append(_show(can.toggle, simple + 2))
    parts = [
        jnp.stack([jnp.int32(heading), _show(can.forward, simple)]),
        jnp.stack(actions(can.pickup, macros.PICK, seen.faced_number), axis=1).reshape(-1),
        _show(can.drop, simple + 1)[None],
        jnp.stack(doors, axis=1).reshape(-1),
        jnp.stack(actions(can.go, macros.GO, seen.faced_number), axis=1).reshape(-1),
        jnp.array([simple + 3], jnp.int32),
    ]
    return jnp.concatenate(parts).astype(jnp.int32)


def refusal(world: World, seen: Surroundings, action: Int[Array, ""]) -> Int[Array, ""]:
    """Returns the code of the answer to an action that is not possible."""
    verb, name, number = macros.split(action)
    form, exists = name // COLORS, seen.name == name
    reachable = jnp.sum(exists & seen.faced)
    # The number of an object that cannot be reached is one more than that of the reachable ones before it.
    after_all = jnp.any(exists & ~seen.faced & (seen.faced_number == reachable))
    unreachable = after_all & (number == reachable + 1)
    door = jnp.any(exists & (seen.number == number))
    carried = jnp.where(world.carrying >= 0, world.slot_cells[world.carrying].astype(jnp.int32) - OBJECT, -1)
    has_key = (carried >= 0) & (carried < COLORS)
    locked = jnp.where(has_key, jnp.where(carried == name % COLORS, NO_PATH, WRONG_KEY), NO_KEY)
    pick = jnp.where(unreachable & (world.carrying < 0), NO_PATH, NOT_RECOGNIZED)
    through = jnp.where(form == OPEN_DOOR, NO_PATH, CLOSED)
    toggle = jnp.where(form == CLOSED_DOOR, NO_PATH, locked)
    by_verb = jnp.stack(
        [
            pick,
            jnp.where(unreachable, NO_PATH, NOT_RECOGNIZED),
            jnp.where(door, through, NOT_RECOGNIZED),
            jnp.where(door, toggle, NOT_RECOGNIZED),
        ]
    )
    drop = jnp.where(world.carrying >= 0, NOT_EMPTY, NOT_CARRYING)
    simple = jnp.where(action == macros.MOVE_FORWARD, BARRIER, NOT_RECOGNIZED)
    simple = jnp.where(action == macros.DROP_IT, drop, simple)
    simple = jnp.where(action == macros.NO_ACTION, NO_CHANGE, simple)
    return jnp.where(verb >= 0, by_verb[jnp.maximum(verb, 0)], simple)
