"""BabyAI as intended: its contract, its rules where they differ from the original's, and its held-out levels."""

import dataclasses
import functools

import babyai_fixtures as recorded
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import envs_jax
from envs_jax import registry
from envs_jax.babyai import baselines, codes, items, levels, macros, make_babyai, search
from envs_jax.babyai.env import BabyAI
from envs_jax.babyai.search import shortest_plans
from envs_jax.splits import Split, fixed_levels, split_key, split_of_level, splits_of_levels
from envs_jax.testing import check_env


@pytest.fixture(scope="module")
def env():
    """Every recorded level fits; one program for the tests that follow actions."""
    return BabyAI(recorded.SHAPE)


@pytest.fixture(scope="module")
def step(env):
    def one(state, action):
        _, state, reward, terminated, info = env.step_env(jax.random.key(0), state, action, env.default_params)
        return state, reward, terminated, info

    return jax.jit(one)


@pytest.fixture(scope="module")
def start(env):
    reset = jax.jit(lambda level: env.reset_to_level(level, env.default_params)[1])
    return lambda index: reset(items.load((index,))[0])


def follow(start, step, index, names):
    state, results = start(index), []
    for name in names:
        state, *result = step(state, jnp.int32(recorded.action_id(name)))
        results.append(result)
    return state, results


@pytest.mark.slow
def test_contract_on_stored_levels(env):
    params = env.default_params.replace(levels=jnp.asarray(items.load(items.panel()[:8])))
    check_env(env, params, key=jax.random.key(0), num_steps=4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"numbers": (1,)}, {"numbers": (8,), "mode": "upstream", "goal": "always"}])
def test_contract(options):
    check_env(*make_babyai(**options), key=jax.random.key(0), num_steps=6)


def test_published_example_in_full(start, step):
    state, results = follow(start, step, 0, ["move forward", "go to red ball 1"])
    assert [float(reward) for reward, *_ in results] == pytest.approx([0, 0.8875])
    assert [bool(terminated) for _, terminated, _ in results] == [False, True]
    assert bool(results[-1][2]["success"])
    assert bool(results[-1][2]["strict_success"])
    assert float(state.score) == pytest.approx(0.8875)


def test_an_opened_door_stays_a_success_when_the_agent_walks_on(start, step):
    """The original forgets it, because the last primitive action of the agent's action pays nothing."""
    shown = follow(start, step, 12, [])[0]
    assert "open" in BabyAI(recorded.SHAPE).render(shown, None).split("\n")[0]
    (plan,) = shortest_plans(BabyAI(recorded.SHAPE), BabyAI(recorded.SHAPE).default_params, items.load((12,)), 20)
    names = [macros.action_names()[action] for action in plan.actions]
    assert names[-1].startswith("toggle")
    _, results = follow(start, step, 12, names)
    assert bool(results[-1][2]["success"])


def test_refused_actions_pay_nothing(start, step, env):
    state, results = follow(start, step, 0, ["nonsense", "drop", "check available actions", ""])
    assert [float(reward) for reward, *_ in results] == [0, 0, 0, 0]
    assert [bool(info["action_is_effective"]) for *_, info in results] == [False, False, True, False]
    assert int(state.time) == 4
    assert int(state.world.steps) == 0
    assert env.render(state, env.default_params).startswith("No change in state.\nAvailable actions")


def test_the_goal_can_be_shown_always(start, step):
    for goal, expected in (("first", 1), ("always", 3)):
        env = BabyAI(recorded.SHAPE, goal=goal)
        texts = [env.render(follow(start, step, 0, ["turn left"] * n)[0], env.default_params) for n in range(3)]
        assert sum(text.startswith("Your goal: go to the red ball\n") for text in texts) == expected


def test_far_objects_are_left_out_if_asked():
    level = items.load((1,))[0]
    envs = [BabyAI(recorded.SHAPE, objects_shown=number) for number in (None, 2)]
    full, few = (env.render(env.reset_to_level(level, None)[1], None) for env in envs)
    assert full.count("There is a") > 2
    assert few.count("There is a") == 2
    assert few.split("  ")[0] == full.split("  ")[0]


def test_rotated_and_mirrored_levels_are_the_same_level(env):
    hashed = jax.jit(lambda level: env.level_hash(env.reset_to_level(level, env.default_params)[1], None))
    shape = recorded.SHAPE

    def image(level, turned):
        """A level of 8x8, turned right or mirrored from left to right, with its place in front of the agent kept."""
        grid, header = level[: shape.height].copy(), level[shape.height :].reshape(-1).copy()
        size = int(header[4])
        room, x, y, heading = grid[:size, :size], int(header[1]), int(header[2]), int(header[3])
        if turned:
            grid[:size, :size], header[1:4] = np.rot90(room, -1), (size - 1 - y, x, (heading + 1) % 4)
        else:
            grid[:size, :size], header[1:4] = room[:, ::-1], (size - 1 - x, y, (2 - heading) % 4)
        return np.concatenate([grid, header.reshape(-1, shape.width)])

    first, second = items.load((1, 41))
    assert (hashed(first) != hashed(second)).any()
    for turned in (True, False):
        np.testing.assert_array_equal(hashed(first), hashed(image(first, turned)))
    # A mission with a side is another one in the mirror.
    located = next(level for level in items.load(tuple(range(18, 2000, 40))) if level[shape.height :].ravel()[14] == 1)
    mirrored = image(located, False)
    assert (hashed(located) != hashed(mirrored)).any()
    mirrored.reshape(-1)[shape.height * shape.width + 14] = 0
    np.testing.assert_array_equal(hashed(located), hashed(mirrored))


def test_the_panel_is_the_published_one_and_never_trained_on(env):
    panel = items.panel()
    packed = items.load(panel)
    assert len(panel) == 90
    assert items.digest(packed) == items.PANEL_DIGEST
    counts = {name: sum(items.family_of(items.number_of(i)) == name for i in panel) for name in items.FAMILIES}
    others = items.others()
    assert len(others) == 22 * 23
    assert not set(map(items.number_of, others)) & set(items.NUMBERS)
    assert not set(panel) & set(others)
    assert counts == {"GoTo": 55, "Pickup": 15, "ActionObjDoor": 5, "FindObj": 5, "OneRoom": 5, "SynthLoc": 5}
    np.testing.assert_array_equal(items.panel_hashes(), recorded.panel_hashes())
    assert set(splits_of_levels(env, env.default_params, packed).tolist()) == {Split.TEST}
    # Level 4 has few different levels, so that training would meet those of the panel.
    small, params = make_babyai((4,))
    draw = jax.jit(jax.vmap(lambda key: small.reset_env(key, params)[1]))
    states = draw(jax.random.split(jax.random.key(0), 4096))
    hashes = np.asarray(jax.vmap(lambda state: small.level_hash(state, params))(states))
    on_panel = (hashes[:, None] == items.panel_hashes()[None]).all(axis=2).any(axis=1)
    assert on_panel.any()
    splits = np.asarray(jax.vmap(lambda state: split_of_level(small, state, params))(states))
    assert (splits[on_panel] == Split.TEST).all()
    # Where such a level alone is too few to be divided, training leaves out those of the panel.
    keep = jax.jit(jax.vmap(lambda key: split_key(small, key, params, Split.NOT_FIXED)))
    keys, found = keep(jax.random.split(jax.random.key(0), 1024))
    assert found.all()
    hashes = np.asarray(jax.vmap(lambda state: small.level_hash(state, params))(draw(keys)))
    assert not (hashes[:, None] == items.panel_hashes()[None]).all(axis=2).any()
    np.testing.assert_array_equal(fixed_levels(env, env.default_params, packed), True)
    assert not fixed_levels(env, env.default_params, items.load(others[:23])).any()


def test_stored_items_are_the_recorded_levels():
    np.testing.assert_array_equal(items.load(recorded.read("levels")["index"]), recorded.all_levels())
    with pytest.raises(ValueError, match="item 2044 of BabyAI is not stored"):
        items.load((2044,))


@pytest.mark.slow
def test_levels_are_kept_in_a_larger_shape(env):
    small = make_babyai((1,))[0]
    level = np.asarray(small.sample_level(jax.random.key(3), small.default_params))
    larger = levels.reshape(level, small.shape, recorded.SHAPE)
    states = [
        jax.jit(lambda level, x=x: x.reset_to_level(level, x.default_params)[1])(jnp.asarray(of))
        for x, of in ((small, level), (env, larger))
    ]
    for hashed in (levels.hash_level, levels.hash_state):
        np.testing.assert_array_equal(*[hashed(state) for state in states])
    texts = [one.render(one.reset_to_level(kept, None)[1], None) for one, kept in ((small, level), (env, larger))]
    assert texts[0] == texts[1]
    with pytest.raises(ValueError, match="does not fit"):
        levels.reshape(larger, recorded.SHAPE, small.shape)


def test_packs_are_checked(tmp_path):
    pack = items.load((0, 1))
    np.save(tmp_path / "good.npy", pack)
    np.testing.assert_array_equal(levels.load_pack(tmp_path / "good.npy", recorded.SHAPE), pack)
    broken = pack.copy()
    broken[1, recorded.SHAPE.height, 1] = 21  # the agent in the outer wall
    np.save(tmp_path / "wall.npy", broken)
    with pytest.raises(ValueError, match=r"wall.npy, level 2 is no level of BabyAI"):
        levels.load_pack(tmp_path / "wall.npy", recorded.SHAPE)
    hiding = pack.copy()
    hiding[0, 0, 0] = codes.HIDING
    np.save(tmp_path / "box.npy", hiding)
    np.testing.assert_array_equal(levels.load_pack(tmp_path / "box.npy", recorded.SHAPE), hiding)
    with pytest.raises(ValueError, match=r"box.npy, level 1 is no level of BabyAI of .*hides=False"):
        levels.load_pack(tmp_path / "box.npy", dataclasses.replace(recorded.SHAPE, hides=False))
    np.save(tmp_path / "shape.npy", pack[:, :20])
    with pytest.raises(ValueError, match=r"levels of shape \(20, 22\)"):
        levels.load_pack(tmp_path / "shape.npy", recorded.SHAPE)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"numbers": "0-3"}, r"numbers is \[0, 1, 2, 3\]"),
        ({"numbers": "1-"}, "numbers is '1-'"),
        ({"numbers": ()}, r"numbers is \[\]"),
        ({"numbers": ",".join(["1-40"] * 11)}, "expected 1 to 400 numbers"),
        ({"mode": "original"}, "mode is 'original'"),
        ({"goal": "never"}, "goal is 'never'"),
        ({"objects_shown": 0}, "objects_shown is 0"),
        ({"actions": "all"}, "actions is 'all'; expected one of macro, primitive"),
        ({"actions": "primitive", "mode": "upstream"}, "actions is primitive, .* but mode is 'upstream'"),
    ],
)
def test_options_that_are_not_usable(options, message):
    with pytest.raises(ValueError, match=message):
        envs_jax.make("BabyAI", **options)


def test_plans_are_shortest_and_replay(start, step, env):
    indices = (0, 3, 1806, 1872)
    plans = shortest_plans(env, env.default_params, items.load(indices), 20, max_nodes=3000)
    assert [len(plan.actions) for plan in plans] == [1, 1, 6, 17]
    for index, plan in zip(indices, plans):
        _, results = follow(start, step, index, [env.actions[action] for action in plan.actions])
        assert [bool(info["success"]) for *_, info in results] == [False] * (len(plan.actions) - 1) + [True]


@pytest.mark.slow
def test_plans_of_primitive_actions_solve_the_level():
    env, params = envs_jax.make("BabyAI-GoToRedBallNoDists", actions="primitive")
    assert env.actions[2] == "move forward"
    assert env.num_actions == 7
    boards = registry.sample_levels(env, params, jax.random.split(jax.random.key(0), 8))
    spec = registry.spec("BabyAI-GoToRedBallNoDists")
    plans = spec.plan(env, params, boards, 30)
    first = spec.random_actions(env, params, boards, 5, jax.random.key(1))
    after = spec.plan_after(env, params, boards, 30, first)
    step = jax.jit(functools.partial(env.step_env, jax.random.key(0)))
    for board, plan, taken, rest in zip(boards, plans, first, after, strict=True):
        for actions in (plan, np.concatenate([taken[taken >= 0], rest])):
            _, state = env.reset_to_level(board, params)
            for number, action in enumerate(actions):
                assert not env.is_done(state, params), number
                _, state, *_ = step(state, jnp.int32(action), params)
            assert env.success(state, params)
    with pytest.raises(ValueError, match="actions is primitive"):
        env.on_items(params, items.panel())


def test_a_search_that_is_given_up_says_so(env):
    (plan,) = shortest_plans(env, env.default_params, items.load((1806,)), 20, max_nodes=50)
    assert plan.actions is None
    assert not plan.complete
    (plan,) = shortest_plans(env, env.default_params, items.load((1806,)), 2)
    assert plan.actions is None
    assert plan.complete


def test_a_search_runs_on_the_host(env, monkeypatch):
    """Whatever the default device is."""
    used, in_batches = set(), search.in_batches

    def spied(*arguments):
        used.update(jnp.zeros(()).devices())
        return in_batches(*arguments)

    monkeypatch.setattr(search, "in_batches", spied)
    with jax.default_device(jax.devices()[3]):
        (plan,) = shortest_plans(env, env.default_params, items.load((1806,)), 1)
    assert (plan.actions, used) == (None, {jax.devices()[0]})


def test_names_of_actions_and_their_numbers():
    names = macros.action_names()
    assert len(set(names)) == len(names)
    for name in ("pickup red ball 1", "go to grey locked door 9", "go through blue open door 2"):
        verb, thing, number = (int(x) for x in macros.split(jnp.int32(names.index(name))))
        assert names[names.index(name)] == f"{macros.VERBS[verb]}{codes.NAMES[thing]} {number}"


def test_a_key_in_a_box_can_be_had_by_default(env, start, step):
    """AgentGym lists nothing that opens the box, so that its level 26 cannot be solved."""
    names, upstream = macros.action_names(), BabyAI(recorded.SHAPE, mode="upstream")
    state = start(next(index for index in items.others() if items.number_of(index) == 26))

    def listed(env):
        return [names[action] for action in np.asarray(env.candidates(state)) if action != macros.UNKNOWN]

    for _ in range(4):  # turns until the box is seen, then walks to it
        to_box = [name for name in listed(env) if name.startswith("go to") and "box" in name]
        state, *_ = step(state, jnp.int32(recorded.action_id(to_box[0] if to_box else "turn left")))
        if to_box:
            break
    assert set(listed(env)) - set(listed(upstream)) == {"toggle"}
    key = int(state.world.hidden.max())
    assert int(state.world.places[key]) < 0
    state, *_ = step(state, jnp.int32(recorded.action_id("toggle")))
    assert int(state.world.places[key]) >= 0
    assert "toggle" not in listed(env)


def test_two_doors_can_be_opened_in_a_strict_order_by_default(start, step):
    """In MiniGrid the action that opens the first door fails the mission to open the second."""
    first, second = ["toggle and go through red closed door 1"], ["turn left", "go to purple closed door 1", "toggle"]
    state, results = follow(start, step, 15, first + second)
    assert [bool(terminated) for _, terminated, _ in results] == [False] * 3 + [True]
    assert results[-1][0] > 0.5
    assert not state.failed
    state, results = follow(start, step, 15, second)
    assert (float(results[-1][0]), bool(state.failed)) == (0.0, True)


def test_stored_plans_count_where_they_solve_the_level():
    """Items 1810 and 2001 need a far object, which an agent that is shown four objects cannot name."""
    chosen = items.load((1810, 2001, 1804))
    for shown, expected in ((10, [True, True, True]), (4, [False, False, True])):
        few = BabyAI(items.SHAPE, mode="upstream", objects_shown=shown)
        lengths = baselines._lengths_of_stored_plans(few, few.default_params, chosen, 20)
        np.testing.assert_array_equal(lengths > 0, expected)
    none = baselines._lengths_of_stored_plans(few, few.default_params, chosen, 1)
    assert (none[:2] == -1).all()
