"""Plans of the guided search, and its estimate."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import registry
from envs_jax.babyai import baselines, items, macros, plans
from envs_jax.babyai.codes import BALL, BOX, CLOSED_DOOR, EMPTY, GO_TO, KEY, LOCKED_DOOR, WALL, cell_of
from envs_jax.babyai.env import BabyAI
from envs_jax.babyai.guided import Distances, careful_actions, guided_plans
from envs_jax.babyai.levels import HEADER, Shape, encode
from envs_jax.babyai.search import shortest_plans
from envs_jax.babyai.state import Mission

LIMIT = 20
RED, BLUE = 0, 2
CELLS = {"#": WALL, ".": EMPTY, "k": cell_of(KEY, RED), "o": cell_of(BALL, BLUE), "b": cell_of(BOX, BLUE)}
CELLS |= {"L": cell_of(LOCKED_DOOR, RED), "D": cell_of(CLOSED_DOOR, BLUE)}
SHAPE = Shape(5, 9, 4)


@pytest.fixture(scope="module")
def env():
    return BabyAI(items.SHAPE, mode="upstream")


def level_of(rows, place=(1, 1)):
    """A level of `SHAPE` whose mission is to go to the blue ball; the agent is at (column, row), facing right."""
    header = dict.fromkeys(HEADER, jnp.int32(0)) | {"number": jnp.int32(7), "room_size": jnp.int32(5)}
    header |= {"x": jnp.int32(place[0]), "y": jnp.int32(place[1]), "max_steps_rest": jnp.int32(99)}
    header |= {"carried_x": jnp.int32(-1), "carried_y": jnp.int32(-1)}
    mission = Mission.empty()
    mission = mission.replace(
        verb=mission.verb.at[0].set(GO_TO),
        described=mission.described.at[0, 0, :2].set(jnp.array([BALL, BLUE], jnp.int8)),
    )
    cells = jnp.array([[CELLS[symbol] for symbol in row] for row in rows])
    return np.asarray(encode(cells, header, mission, SHAPE))


def estimate(level, actions=()):
    """The estimate after actions."""
    env = BabyAI(SHAPE)
    _, state = env.reset_to_level(jnp.asarray(level), env.default_params)
    for action in actions:
        _, state, *_ = env.step_env(jax.random.key(0), state, jnp.int32(env.actions.index(action)), env.default_params)
    states = jax.tree.map(lambda leaf: np.asarray(leaf)[None], state)
    return Distances.measure(level[None], SHAPE)(states, np.array([0]))[0] % 1000


ROOM = ["#########", "#.......#", "#.......#", "#......o#", "#########"]
LOCKED = ["#########", "#...#...#", "#...L...#", "#k..#..o#", "#########"]


def test_the_estimate_is_the_way_to_the_goal():
    assert estimate(level_of(ROOM)) == 6 + 2
    assert estimate(level_of(ROOM), ["move forward", "move forward"]) == 4 + 2
    assert estimate(level_of(ROOM, (6, 3))) == 1


def test_a_wall_is_walked_around_and_an_object_costs_steps():
    wall = ["#########", "#.#.....#", "#.#.#####", "#......o#", "#########"]
    assert estimate(level_of(wall)) == 2 + 6
    narrow = ["#########", "#.#.....#", "#.###b###", "#....bo.#", "#########"]
    assert estimate(level_of(narrow)) == 2 + 5 + 4, "a box counts five steps instead of one"


def test_a_locked_door_is_passed_with_its_key_only():
    assert estimate(level_of(LOCKED)) == 2 + 20 + 7 + 5, "to the key, to carry it, and from its cell through the door"
    assert estimate(level_of(LOCKED), ["pickup red key 1"]) == 7
    open_door = ["#########", "#...#...#", "#...D...#", "#k..#..o#", "#########"]
    assert estimate(level_of(open_door)) == 6 + 2


def test_what_cannot_be_reached_is_far():
    shut = ["#########", "#...#...#", "#...#...#", "#k..#..o#", "#########"]
    assert estimate(level_of(shut)) == 500
    small = BabyAI(SHAPE)
    (plan,) = guided_plans(small, small.default_params, level_of(shut)[None], LIMIT)
    assert plan.actions is None
    assert not plan.complete, "not all places were tried to which the key could be carried"
    shut[3] = "#...#..o#"
    (plan,) = guided_plans(small, small.default_params, level_of(shut)[None], LIMIT, width=1000)
    assert plan.actions is None
    assert plan.complete


def test_a_locked_door_is_opened():
    small = BabyAI(SHAPE)
    (plan,) = guided_plans(small, small.default_params, level_of(LOCKED)[None], LIMIT, width=2)
    names = [small.actions[action] for action in plan.actions]
    assert "pickup red key 1" in names
    assert "toggle and go through red locked door 1" in names


def test_plans_reach_the_goal_and_are_hardly_longer_than_the_shortest(env):
    stored = {item: plan for item, plan in plans.stored().items() if plan}
    chosen = tuple(list(stored)[::10])
    levels = items.load(chosen)
    found = guided_plans(env, env.default_params, levels, LIMIT)
    assert all(plan.actions for plan in found)
    scripts = jnp.asarray(plans.scripts([plan.actions for plan in found], LIMIT))
    solved, _, _, turns = plans.replay(
        env, env.default_params, levels, jax.random.split(jax.random.key(0), len(levels)), scripts
    )
    assert np.asarray(solved).all()
    excess = np.asarray(turns) - [len(stored[item]) for item in chosen]
    assert excess.min() == 0
    assert (excess > 0).mean() < 0.1


def test_levels_that_a_small_search_gives_up_have_plans(env):
    """These took 60,000 situations and more."""
    hard = (1846, 1872, 1875, 1886)
    given_up = shortest_plans(env, env.default_params, items.load(hard), LIMIT, max_nodes=baselines.MAX_NODES)
    assert all(plan.actions is None and not plan.complete for plan in given_up)
    found = registry.spec("BabyAI").plan(env, env.default_params, items.load(hard), LIMIT)
    assert all(plan is not None and len(plan) <= LIMIT for plan in found)


def test_a_plan_after_other_actions_follows_them(env):
    levels = items.load((1846, 1872))
    first = np.array([[macros.TURN_LEFT, macros.MOVE_FORWARD, -1], [-1, -1, -1]], np.int32)
    rests = [plan.actions for plan in guided_plans(env, env.default_params, levels, LIMIT, first=first)]
    whole = [(*first[0, :2].tolist(), *rests[0]), rests[1]]
    keys = jax.random.split(jax.random.key(0), 2)
    solved, *_ = plans.replay(env, env.default_params, levels, keys, jnp.asarray(plans.scripts(whole, 2 + LIMIT)))
    assert np.asarray(solved).all()


def test_careful_actions_pick_up_keys_and_what_is_wanted():
    usable = careful_actions(level_of(LOCKED), SHAPE)
    names = np.array(macros.action_names())[usable]
    picked = {name.split()[2] for name in names if name.startswith("pickup")}
    assert picked == {"key"}
    assert "drop" not in names
    assert {"turn left", "go to blue ball 1"} <= set(names)


@pytest.mark.slow
def test_primitive_actions_have_plans_too():
    env, params = envs_jax.make("BabyAI-GoToObjMazeS7", actions="primitive")
    boards = registry.sample_levels(env, params, jax.random.split(jax.random.key(0), 4))
    step = jax.jit(functools.partial(env.step_env, jax.random.key(0)))
    found = guided_plans(env, params, boards, 100)
    for board, plan in zip(boards, found, strict=True):
        _, state = env.reset_to_level(board, params)
        for action in plan.actions:
            _, state, *_ = step(state, jnp.int32(action), params)
        assert env.success(state, params)
