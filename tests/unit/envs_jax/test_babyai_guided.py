"""Plans of the guided search, and its estimate."""

import jax
import jax.numpy as jnp
import numpy as np
from babyai_games import PARAMS, SMALL, walk

from envs_jax.babyai import macros
from envs_jax.babyai.codes import BALL, BOX, CLOSED_DOOR, EMPTY, GO_TO, KEY, LOCKED_DOOR, WALL, cell_of
from envs_jax.babyai.guided import Distances, careful_actions, guided_plans
from envs_jax.babyai.levels import HEADER, encode
from envs_jax.babyai.search import shortest_plans
from envs_jax.babyai.state import Mission

LIMIT = 20
RED, BLUE = 0, 2
CELLS = {"#": WALL, ".": EMPTY, "k": cell_of(KEY, RED), "o": cell_of(BALL, BLUE), "b": cell_of(BOX, BLUE)}
CELLS |= {"L": cell_of(LOCKED_DOOR, RED), "D": cell_of(CLOSED_DOOR, BLUE)}
SHAPE = SMALL.shape


def level_of(rows, place=(1, 1)):
    """A level of `SMALL` whose mission is to go to the blue ball; the agent is at (column, row), facing right."""
    facts = {"number": 7, "room_size": 5, "x": place[0], "y": place[1], "max_steps_rest": 99}
    facts |= {"carried_x": -1, "carried_y": -1}
    header = {name: jnp.int32(facts.get(name, 0)) for name in HEADER}
    mission = Mission.empty()
    described = mission.described.at[0, 0, :2].set(jnp.array([BALL, BLUE], jnp.int8))
    mission = mission.replace(verb=mission.verb.at[0].set(GO_TO), described=described)
    cells = jnp.array([[CELLS[symbol] for symbol in row] for row in [*rows, *["#" * 9] * (SHAPE.height - len(rows))]])
    return np.asarray(encode(cells, header, mission, SHAPE))


def estimate(level, actions=()):
    states = jax.tree.map(lambda leaf: np.asarray(leaf)[None], walk(SMALL, level, actions)[-1][0])
    return Distances.measure(level[None], SHAPE)(states, np.array([0]))[0] % 1000


ROOM = ["#########", "#.......#", "#.......#", "#......o#", "#########"]
LOCKED = ["#########", "#...#...#", "#...L...#", "#k..#..o#", "#########"]


def test_the_estimate_is_the_way_to_the_goal_around_walls_past_things_and_through_locked_doors():
    assert estimate(level_of(ROOM)) == 6 + 2
    assert estimate(level_of(ROOM), ["move forward", "move forward"]) == 4 + 2
    assert estimate(level_of(ROOM, (6, 3))) == 1
    wall = ["#########", "#.#.....#", "#.#.#####", "#......o#", "#########"]
    assert estimate(level_of(wall)) == 2 + 6
    narrow = ["#########", "#.#.....#", "#.###b###", "#....bo.#", "#########"]
    assert estimate(level_of(narrow)) == 2 + 5 + 4, "a box counts five steps instead of one"
    assert estimate(level_of(LOCKED)) == 2 + 20 + 7 + 5, "to the key, to carry it, and from its cell through the door"
    assert estimate(level_of(LOCKED), ["pickup red key 1"]) == 7
    open_door = ["#########", "#...#...#", "#...D...#", "#k..#..o#", "#########"]
    assert estimate(level_of(open_door)) == 6 + 2


def plan(level, **options):
    (found,) = guided_plans(SMALL, PARAMS, level[None], LIMIT, **options)
    return found


def test_what_cannot_be_reached_is_far():
    shut = ["#########", "#...#...#", "#...#...#", "#k..#..o#", "#########"]
    assert estimate(level_of(shut)) == 500
    found = plan(level_of(shut))
    assert found.actions is None
    assert not found.complete, "not all places were tried to which the key could be carried"
    shut[3] = "#...#..o#"
    found = plan(level_of(shut), width=1000)
    assert found.actions is None
    assert found.complete


def test_a_locked_door_is_opened_by_a_plan_of_the_fewest_actions():
    (shortest,) = shortest_plans(SMALL, PARAMS, level_of(LOCKED)[None], LIMIT)
    found = plan(level_of(LOCKED), width=2)
    assert len(found.actions) == len(shortest.actions)
    usable = careful_actions(level_of(LOCKED), SHAPE)
    careful = np.array(macros.action_names())[usable]
    assert {name.split()[2] for name in careful if name.startswith("pickup")} == {"key"}
    assert "drop" not in careful
    assert {"turn left", "go to blue ball 1"} <= set(careful)
    names = [SMALL.actions[action] for action in found.actions]
    assert "pickup red key 1" in names
    assert "toggle and go through red locked door 1" in names
    assert SMALL.success(walk(SMALL, level_of(LOCKED), found.actions)[-1][0], PARAMS)


def test_a_plan_after_other_actions_follows_them():
    levels = np.stack([level_of(LOCKED), level_of(ROOM)])
    first = np.full((2, 1 + LIMIT), -1, np.int32)  # as wide as where demonstrations look around, in one program
    first[0, :2] = macros.TURN_LEFT, macros.MOVE_FORWARD
    rests = guided_plans(SMALL, PARAMS, levels, LIMIT, first=first)
    for level, taken, rest in zip(levels, (first[0, :2], []), rests):
        assert SMALL.success(walk(SMALL, level, [*taken, *rest.actions])[-1][0], PARAMS)
    assert len(rests[0].actions) > len(plan(level_of(LOCKED)).actions)
