"""BabyAI as intended: its rules where they differ from the original's, its searches, and its held-out levels."""

import dataclasses
import hashlib
import itertools

import babyai_fixtures as recorded
import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from babyai_games import LARGE, PARAMS, RED_BALLS, SMALL, UPSTREAM, listed, reset, small_items, step, text, walk

from envs_jax import registry
from envs_jax.babyai import baselines, codes, items, levels, macros, plans
from envs_jax.babyai.env import BabyAI, PrimitiveBabyAI
from envs_jax.babyai.search import Plan, shortest_plans
from envs_jax.babyai.state import NOTHING
from envs_jax.budget import EXACT, Budget
from envs_jax.splits import Split, fixed_levels, splits_of_levels

FIRST = small_items((0,))[0]
BOARDS = small_items(RED_BALLS[:6])
LENGTHS = [1, 2, 2, 2, 1, 1]


def item(index):
    return items.load((index,))[0]


def follow(env, level, names):
    state, results = reset(env, level), []
    for name in names:
        state, *result = step(env, state, name)
        results.append(result)
    return state, results


@pytest.mark.nightly
def test_refused_actions_pay_nothing():
    state, results = follow(SMALL, FIRST, ["nonsense", "drop", "check available actions", ""])
    assert [float(reward) for reward, *_ in results] == [0, 0, 0, 0]
    assert [bool(info["action_is_effective"]) for *_, info in results] == [False, False, True, False]
    assert int(state.time) == 4
    assert int(state.world.steps) == 0
    assert text(SMALL, state).startswith("No change in state.\nAvailable actions")


def test_the_goal_can_be_shown_always_and_far_objects_left_out():
    states = [state for state, _ in walk(SMALL, FIRST, ["turn left"] * 2)]
    for env, expected in ((SMALL, [True, False, False]), (BabyAI(SMALL.shape, goal="always"), [True] * 3)):
        assert [text(env, state).startswith("Your goal: go to the red ball\n") for state in states] == expected
    full, few = (text(env, reset(env, BOARDS[0])) for env in (SMALL, BabyAI(SMALL.shape, objects_shown=2)))
    assert full.count("There is a") > 2
    assert few.count("There is a") == 2
    assert few.split("  ")[0] == full.split("  ")[0]


def test_episodes_start_on_the_given_levels():
    keys, params = jax.random.split(jax.random.key(0), 300), PARAMS.replace(levels=jnp.asarray(BOARDS))
    drawn = jax.vmap(SMALL.sample_level, in_axes=(0, None))(keys, params)
    counts = [int((drawn == board).all(axis=(1, 2)).sum()) for board in BOARDS]
    assert sum(counts) == 300
    assert min(counts) > 30
    view, state = jax.jit(SMALL.reset_env)(keys[0], params)
    chex.assert_trees_all_equal(state, reset(SMALL, drawn[0]))
    assert (view == SMALL.get_obs(state)).all()
    assert SMALL.observation_space(params).contains(view)
    assert [tuple(map(float, env.reward_range(params))) for env in (SMALL, UPSTREAM)] == [(0, 1), (-np.inf, 1)]
    np.testing.assert_array_equal(SMALL.level_images(BOARDS[0]), levels.images(BOARDS[0], SMALL.shape))
    with pytest.raises(ValueError, match="neither a generator nor levels"):
        SMALL.sample_level(keys[0], PARAMS)
    with pytest.raises(ValueError, match=r"expected \(\d+, 9\): make the environment"):
        SMALL.reset_to_level(item(0), params)


def test_primitive_actions_are_taken_as_they_are():
    env, start = PrimitiveBabyAI(SMALL.shape), reset(SMALL, FIRST)
    assert int(env.default_params.max_steps_in_episode) == 128
    assert listed(env, start) == list(env.actions[:6])
    for number, name in enumerate(("turn left", "turn right", "move forward")):
        chex.assert_trees_all_equal(step(env, start, number)[0].world, step(SMALL, start, name)[0].world)
    for number in (-1, len(env.actions)):
        state, reward, _, info = step(env, start, number)
        chex.assert_trees_all_equal(state.world, start.world)
        assert (int(state.time), float(reward), bool(info["action_is_effective"])) == (1, 0, False)
    with pytest.raises(ValueError, match="actions is primitive"):
        env.on_items(env.default_params, items.panel())


def test_the_panel_is_the_published_one_and_a_test_level_in_any_case():
    panel, others = items.panel(), items.others()
    packed = items.load(panel)
    assert len(panel) == 90
    assert items.digest(packed) == items.PANEL_DIGEST
    assert len(others) == 22 * 23
    assert not set(map(items.number_of, others)) & set(items.NUMBERS)
    assert not set(panel) & set(others)
    np.testing.assert_array_equal(items.panel_hashes(), recorded.panel_hashes())
    both = np.concatenate([packed, items.load(others[:90])])
    splits = splits_of_levels(LARGE, LARGE.default_params, both)
    np.testing.assert_array_equal(fixed_levels(LARGE, LARGE.default_params, both), np.arange(180) < 90)
    assert set(splits[:90].tolist()) == {Split.TEST}
    assert Split.TRAIN in splits[90:]


def test_stored_items_are_the_recorded_levels():
    # Taken when they were made out of MiniGrid's grids and instructions.
    digest = "e51d93b91d847c914079b2c641b1bc21c0d393ef77843da3723b827df01d8283"
    assert hashlib.sha256(recorded.all_levels().tobytes()).hexdigest() == digest
    with pytest.raises(ValueError, match="item 2044 of BabyAI is not stored"):
        items.load((2044,))
    assert [number for number, plan in plans.stored().items() if plan is None] == [246, 566, 1406]


def test_states_in_which_other_things_were_carried_have_other_hashes():
    state, carried = reset(SMALL, BOARDS[0]), np.array(list(itertools.product(range(-1, 3), repeat=4)), np.int32)
    after = jax.vmap(lambda row: state.replace(progress=state.progress.replace(carried_before=row)))(carried)
    hashes = jax.jit(jax.vmap(SMALL.state_hash, (0, None)))(after, PARAMS)
    assert len(np.unique(hashes, axis=0)) == len(carried)


def test_packs_and_the_numbers_of_a_level_are_checked(tmp_path):
    """Also where the cell of the agent is free, as that nearest to a wrong place is here."""
    pack, shape, file = items.load((0, 1)), items.SHAPE, tmp_path / "pack.npy"
    broken, hiding, without = pack.copy(), pack.copy(), dataclasses.replace(shape, hides=False)
    broken[1, shape.height, 1] = 21  # the agent in the outer wall
    hiding[0, 0, 0] = codes.HIDING
    for written in (pack, hiding):
        np.save(file, written)
        np.testing.assert_array_equal(levels.load_pack(file, shape), written)
    for written, read_as, flaw in [
        (broken, shape, "pack.npy, level 2 is no level of BabyAI"),
        (hiding, without, "pack.npy, level 1 is no level of BabyAI of .*hides=False"),
        (pack[:, :20], shape, r"levels of shape \(20, 22\)"),
    ]:
        np.save(file, written)
        with pytest.raises(ValueError, match=flaw):
            levels.load_pack(file, read_as)
    outside = (-1, 22, 23)
    wrong = {"number": (0, -1), "x": outside, "y": outside, "heading": (-1, 4), "clause": (-1, 5)}
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        pack = items.load((0, 1))
        pack[1, shape.height, (*levels.HEADER, "clause").index(name)] = value
        x, y = np.clip(pack[1, shape.height, 1:3], 0, 21)
        pack[1, y, x] = codes.EMPTY
        np.save(file, pack)
        with pytest.raises(ValueError, match="level 2 is no level") as caught:
            levels.load_pack(file, shape)
        assert caught.value.value == 2, (name, value)


def test_plans_are_shortest_and_replay_and_a_search_that_is_given_up_says_so():
    found = shortest_plans(SMALL, PARAMS, BOARDS, 20)
    assert [len(plan.actions) for plan in found] == LENGTHS
    for board, plan in zip(BOARDS, found):
        _, results = follow(SMALL, board, [SMALL.actions[action] for action in plan.actions])
        assert [bool(info["success"]) for *_, info in results] == [False] * (len(plan.actions) - 1) + [True]
    board = BOARDS[[np.argmax(LENGTHS)]]
    found = [shortest_plans(SMALL, PARAMS, board, 20, max_nodes=2)[0], shortest_plans(SMALL, PARAMS, board, 1)[0]]
    assert [(plan.actions, plan.complete) for plan in found] == [(None, False), (None, True)]


def test_stored_plans_count_and_other_levels_are_searched_until_a_plan_is_found(monkeypatch):
    shortest = registry.spec("BabyAI-GoToRedBall").plan(SMALL, PARAMS, BOARDS, 20)
    assert [plan is None for plan in baselines.plan(SMALL, PARAMS, BOARDS, 1)] == [length > 1 for length in LENGTHS]
    assert baselines._stored_plans()[item(1804).tobytes()] == plans.stored()[1804]
    around = *[macros.TURN_LEFT] * 4, *shortest[0]
    stored = dict(zip(map(bytes, BOARDS), (around, *map(tuple, shortest[1:]))))
    monkeypatch.setattr(baselines, "_stored_plans", lambda: stored)
    monkeypatch.setattr(baselines, "guided_plans", lambda *of, first: [Plan(None, False, 9)] * len(of[2]))
    monkeypatch.setattr(baselines, "MAX_NODES", 2)
    played = np.arange(48) % 2 == 0, None, None, np.arange(48) % 8 + 1  # random play, eight times on each level
    monkeypatch.setattr(baselines, "play", lambda *of: played)
    for number, most in enumerate((0, 2000, 2)):
        monkeypatch.setattr(baselines, "MAX_EXACT_NODES", most)
        found = baselines.oracle(SMALL, PARAMS, BOARDS, Budget.one_per_turn(20))
        stored[bytes(BOARDS[1])] = (macros.TURN_LEFT,)  # which does not solve the level
        assert found.random.tolist() == [0.5] * 6
        assert found.turns.pop("random").tolist() == [4.5] * 6
        solved, kind = [1, number < 2, 1, 1, 1, 1], EXACT if number < 2 else baselines.SEARCH
        assert (found.optimal.tolist(), found.optimal_is) == (solved, kind)
        assert [x.tolist() for x in found.turns.values()] == [[5, *LENGTHS[1:]]] * (number < 2)
    assert baselines._lengths_of_stored_plans(SMALL, PARAMS, BOARDS[:1], 4).tolist() == [-1], "too long"


def test_plans_to_store_come_from_the_next_search_where_one_gives_up(monkeypatch, tmp_path):
    guided = [(7,), (7,)]
    monkeypatch.setattr(plans, "MAX_NODES", 2)
    monkeypatch.setattr(plans, "guided_plans", lambda *_: [Plan((7,), False, 9)] * 2)
    for most in ((100, 2), (2, 100)):
        assert list(map(len, plans.find(SMALL, PARAMS, BOARDS[1:3], max_nodes=most))) == LENGTHS[1:3]
    assert plans.find(SMALL, PARAMS, BOARDS[1:3], max_nodes=(2, 2)) == guided
    monkeypatch.setattr(plans, "careful_actions", lambda *_: np.zeros(macros.STARTS[-1], bool))
    assert plans.find(SMALL, PARAMS, BOARDS[1:3], max_nodes=(2, 100)) == guided
    monkeypatch.setattr(plans, "find", lambda env, params, levels, max_nodes: [(4, 5), *[None] * (len(levels) - 1)])
    monkeypatch.setattr(plans, "FILE", tmp_path / "plans.json")
    trained = list(plans.stored())
    plans.main()
    assert plans.stored.__wrapped__() == dict.fromkeys(trained) | dict.fromkeys(trained[::50], (4, 5))


@pytest.mark.nightly
def test_a_key_in_a_box_can_be_had_by_default():
    """AgentGym lists nothing that opens the box, so that its level 26 cannot be solved."""
    state = reset(LARGE, item(next(index for index in items.others() if items.number_of(index) == 26)))
    to_box = []
    while not to_box:
        to_box = [name for name in listed(LARGE, state) if name.startswith("go to") and "box" in name]
        state, *_ = step(LARGE, state, to_box[0] if to_box else "turn left")
    assert set(listed(LARGE, state)) - set(listed(UPSTREAM, state)) == {"toggle"}
    key = int(state.world.hidden.max())
    assert int(state.world.places[key]) < 0
    with_nothing = state.world.replace(hidden=jnp.full_like(state.world.hidden, NOTHING))
    assert "toggle" not in listed(LARGE, state.replace(world=with_nothing))
    state, *_ = step(LARGE, state, "toggle")
    assert int(state.world.places[key]) >= 0
    assert "toggle" not in listed(LARGE, state)


def test_two_doors_can_be_opened_in_a_strict_order_by_default():
    """In MiniGrid the action that opens the first door fails the mission to open the second."""
    first, second = ["toggle and go through red closed door 1"], ["turn left", "go to purple closed door 1", "toggle"]
    state, results = follow(LARGE, item(15), first + second)
    assert [bool(terminated) for _, terminated, _ in results] == [False] * 3 + [True]
    assert results[-1][0] > 0.5
    assert not state.failed
    state, results = follow(LARGE, item(15), second)
    assert (float(results[-1][0]), bool(state.failed)) == (0.0, True)
