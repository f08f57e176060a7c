"""BabyAI at full size: its contract, and its searches on large levels."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from babyai_games import LARGE, RED_BALLS, SMALL, UPSTREAM, listed, reset, small_items, walk

from envs_jax import registry
from envs_jax.babyai import baselines, items, macros, make_babyai, plans
from envs_jax.babyai.guided import guided_plans
from envs_jax.babyai.search import shortest_plans
from envs_jax.budget import Budget
from envs_jax.testing import check_env

PARAMS = LARGE.default_params
LIMIT = 20


@pytest.mark.parametrize("options", [None, {"numbers": (1,)}, {"numbers": (8,), "mode": "upstream", "goal": "always"}])
def test_contract(options):
    stored = LARGE, PARAMS.replace(levels=jnp.asarray(items.load(items.panel()[:8])))
    check_env(*(make_babyai(**options) if options else stored), key=jax.random.key(0), num_steps=4)


def succeeds(env, params, board, actions):
    advance, state = jax.jit(functools.partial(env.step_env, jax.random.key(0))), reset(env, board)
    for action in actions:
        _, state, *_ = advance(state, jnp.int32(action), params)
    return bool(env.success(state, params))


@pytest.mark.parametrize("name", ["GoToRedBallNoDists", "GoToObjMazeS7"])
def test_plans_of_primitive_actions_solve_the_level(name):
    env, params = registry.make(f"BabyAI-{name}", actions="primitive")
    boards = registry.sample_levels(env, params, jax.random.split(jax.random.key(0), 4))
    spec = registry.spec(f"BabyAI-{name}")
    first = spec.random_actions(env, params, boards, 5, jax.random.key(1))
    found = [spec.plan(env, params, boards, 100), spec.plan_after(env, params, boards, 100, first)]
    for board, plan, taken, rest in zip(boards, found[0], first, found[1], strict=True):
        assert succeeds(env, params, board, plan)
        assert succeeds(env, params, board, [*taken[taken >= 0], *rest])


def replayed(boards, found, limit=LIMIT):
    """Turns of plans that solve their levels by the original's rules."""
    keys = jax.random.split(jax.random.key(0), len(boards))
    scripts = jnp.asarray(plans.scripts(found, limit))
    solved, _, _, turns = plans.replay(UPSTREAM, UPSTREAM.default_params, boards, keys, scripts)
    assert np.asarray(solved).all()
    return np.asarray(turns)


def test_guided_plans_reach_the_goal_and_are_hardly_longer_than_the_shortest():
    stored = {item: plan for item, plan in plans.stored().items() if plan}
    chosen = tuple(list(stored)[::10])
    found = guided_plans(UPSTREAM, UPSTREAM.default_params, items.load(chosen), LIMIT)
    excess = replayed(items.load(chosen), [plan.actions for plan in found]) - [len(stored[item]) for item in chosen]
    assert excess.min() == 0
    assert (excess > 0).mean() < 0.1


def test_levels_that_a_small_search_gives_up_have_guided_plans():
    """These took 60,000 situations and more."""
    hard, params = items.load((1846, 1872, 1875, 1886)), UPSTREAM.default_params
    given_up = shortest_plans(UPSTREAM, params, hard, LIMIT, max_nodes=baselines.MAX_NODES)
    assert all(plan.actions is None and not plan.complete for plan in given_up)
    found = registry.spec("BabyAI").plan(UPSTREAM, params, hard, LIMIT)
    assert all(plan is not None and len(plan) <= LIMIT for plan in found)
    first = np.array([[macros.TURN_LEFT, macros.MOVE_FORWARD, -1]], np.int32)
    (rest,) = guided_plans(UPSTREAM, params, hard[:1], LIMIT, first=first)
    replayed(hard[:1], [(*first[0, :2].tolist(), *rest.actions)], 2 + LIMIT)


def test_random_play_solves_most_levels_of_a_red_ball():
    found = baselines.oracle(SMALL, SMALL.default_params, small_items(RED_BALLS[:6]), Budget.one_per_turn(20))
    assert 0.6 < found.random.mean() < 1
    assert 3 < found.turns["random"].mean() < 15


def test_what_is_imitated_after_random_actions_solves_the_level():
    spec, boards = registry.spec("BabyAI-GoToRedBall"), small_items(RED_BALLS[:24])
    first = spec.random_actions(SMALL, SMALL.default_params, boards, 1, jax.random.key(1))
    assert 6 <= (first >= 0).sum() <= 18
    for board, taken, plan in zip(
        boards, first, spec.exploring_after(SMALL, SMALL.default_params, boards, LIMIT, first)
    ):
        taken = taken[taken >= 0]
        *start, (state, _) = walk(SMALL, board, taken)
        assert all(SMALL.actions[action] in listed(SMALL, before) for action, (before, _) in zip(taken, start))
        assert (plan is None) == bool(state.terminated)
        (state, _) = walk(SMALL, board, [*taken, *(plan if plan is not None else ())])[-1]
        assert SMALL.success(state, SMALL.default_params)
