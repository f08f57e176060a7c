"""Names, options and baselines; what the package imports."""

import hashlib
import subprocess
import sys
import types
from importlib import metadata

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xla_settings
from sokoban_boards import TWO_BOXES, check_all, generate_pack

import envs_jax
from envs_jax import known_baselines, registry
from envs_jax.babyai import TAGS
from envs_jax.budget import Budget
from envs_jax.checks import check_registered
from envs_jax.sokoban import TAGS as SOKOBANS
from envs_jax.sokoban import Sokoban
from envs_jax.sokoban.oracle import plan_lengths, random_success, solve
from envs_jax.testing import check_env


def test_every_name_makes_an_environment():
    names = envs_jax.registered()
    assert set(registry.BUILT_IN) == set(names)
    for name in names:
        env, params = envs_jax.make(name)
        spec = envs_jax.spec(name)
        assert spec.description
        assert spec.success_rule
        assert spec.max_actions <= params.max_steps_in_episode
        assert len(env.actions) == env.num_actions
    babyai = {name for name in names if name.startswith("BabyAI")}
    assert len(babyai) == 41
    assert babyai == set(TAGS), "known without an import of BabyAI"
    commands = {name for name in names if envs_jax.spec(name).scripts}
    assert set(known_baselines.BASELINES) == set(names) - babyai - commands
    # Bandits have the pairs of the original.
    pairs = {"Bandit": "Engineer/Teacher", "BanditRev": "Teacher/Engineer", "BanditPhoenix": "Phoenix/Dragon"}
    pairs |= {"BanditTest": "Trader/Librarian", "BanditRevTest": "Librarian/Trader"}
    bandits = [name for name in names if name.startswith("Bandit")]
    assert {name: "/".join(envs_jax.make(name)[0].actions) for name in bandits} == pairs


def test_drawn_levels_are_those_that_episodes_start_on(monkeypatch):
    env, params = envs_jax.make("FrozenLake")
    keys = jax.random.split(jax.random.key(9), 12)
    _, states = jax.jit(jax.vmap(env.reset_env, in_axes=(0, None)))(keys, params)
    assert np.array_equal(registry.sample_levels(env, params, keys), states.level)
    chex.assert_shape(registry.sample_levels(*envs_jax.make("Bandit"), keys), (12, 0, 0))
    monkeypatch.setattr(registry, "SAMPLED_AT_ONCE", 6)
    assert np.array_equal(registry.sample_levels(env, params, keys), states.level), "in several batches, too"


def test_options_reach_the_factory_and_the_parameters(monkeypatch):
    env, params = envs_jax.make("FrozenLake-v2", height=5, success_rate=0.5, max_steps_in_episode=7)
    assert (env.height, env.width, params.success_rate, params.max_steps_in_episode) == (5, 4, 0.5, 7)
    assert float(params.frozen_probability) == pytest.approx(0.9)
    assert params.max_steps_in_episode.dtype == np.int32
    _, params = envs_jax.make("Bandit", high_probability=1)
    assert params.high_probability.dtype == np.float32
    monkeypatch.setattr("envs_jax.babyai.make_generator", lambda numbers, shape, *, upstream: upstream)
    assert [envs_jax.make("BabyAI", mode=mode)[0].generate for mode in ("intended", "upstream")] == [False, True]


def test_unknown_names_and_options_are_refused():
    for name, options, message in (
        ("Sokobam", {}, "did you mean .*Sokoban"),
        ("chess", {}, "known are Bandit, "),
        ("FrozenLake", {"hieght": 3}, "no option 'hieght'; did you mean height"),
        ("FrozenLake", {"levels": 3}, "no option 'levels'"),
        ("FrozenLake", {"max_steps_in_episode": float("inf")}, "is inf; expected an integer"),
        ("FrozenLake", {"max_steps_in_episode": 2**40}, "expected an integer of type int32"),
        ("FrozenLake", {"max_steps_in_episode": 10**400}, "expected an integer of type int32"),
        ("FrozenLake", {"max_steps_in_episode": 0}, "expected an integer of type int32 of at least 1"),
        ("Bandit", {"low_reward": "much"}, "low_reward of Bandit is 'much'; expected a finite number"),
        ("FrozenLake", {"height": 65}, "FrozenLake of 65x4; expected two numbers from 1 to 64"),
        ("SimpleSokoban", {"vocabulary": ["a", "b", "ab", "c", "d", "e", "f"]}, "expected 7 symbols of one length"),
        ("Bandit", {"high_probability": 2.0}, "is 2.0; expected a finite number of at least 0 and at most 1"),
        ("Bandit", {"low": 5}, "Bandit cannot be made with low: 5"),
        ("BabyAI", {"objects_shown": 2.5}, "objects_shown of BabyAI is 2.5; expected an integer"),
        ("BabyAI", {"numbers": "11-1,19"}, "whose range 11-1 is empty"),
        ("BabyAI", {"numbers": "0-3"}, r"numbers is \[0, 1, 2, 3\]"),
        ("BabyAI", {"numbers": "1-"}, "numbers is '1-'"),
        ("BabyAI", {"numbers": ()}, r"numbers is \[\]"),
        ("BabyAI", {"numbers": ",".join(["1-40"] * 11)}, "expected 1 to 400 numbers"),
        ("BabyAI", {"mode": "original"}, "mode is 'original'"),
        ("BabyAI", {"goal": "never"}, "goal is 'never'"),
        ("BabyAI", {"objects_shown": 0}, "objects_shown is 0"),
        ("BabyAI", {"actions": "all"}, "actions is 'all'"),
        ("BabyAI", {"actions": "primitive", "mode": "upstream"}, "mode is 'upstream'"),
    ):
        with pytest.raises(ValueError, match=message):
            envs_jax.make(name, **options)


def test_a_registry_takes_new_names_once_and_an_oracle_may_return_a_pair():
    def oracle(env, params, levels, budget):
        return np.full(len(levels), 0.25), np.full(len(levels), budget.reachable / 10)

    own = envs_jax.Registry(registry.BUILT_IN)
    own.register("Small", lambda width=3: envs_jax.make("FrozenLake", height=3, width=width), description="3x3")
    assert own.registered() == (*envs_jax.registered(), "Small")
    assert own.make("Small", width=4)[0].width == 4
    with pytest.raises(ValueError, match="'Small' is registered already"):
        own.register("Small", lambda: None)
    assert "Small" not in envs_jax.registered()
    own.register("Lake", lambda: envs_jax.make("FrozenLake"), oracle=oracle)
    assert own.baselines("Lake", jax.random.key(0), 3, Budget(10, 2, 3)) == (0.25, 0.6)
    with pytest.raises(ValueError, match="0 levels; expected at least 1"):
        own.baselines("Lake", jax.random.key(0), 0, Budget(10, 2, 3))


def test_environments_of_installed_packages_are_registered_when_they_are_asked_for(monkeypatch, caplog):
    own, groups = envs_jax.Registry(registry.BUILT_IN, installed=True), []

    def register():
        assert "Mine" not in own.registered(), "the function may ask for names"
        own.register("Mine", lambda: envs_jax.make("FrozenLake", height=3))

    def fails():
        raise KeyError("color")

    def entry_points(group):
        groups.append(group)
        return [metadata.EntryPoint(name, f"my_package:{name}", group) for name in ("fails", "register")]

    monkeypatch.setitem(sys.modules, "my_package", types.SimpleNamespace(fails=fails, register=register))
    monkeypatch.setattr(metadata, "entry_points", entry_points)
    assert own.make("FrozenLake")[0].height == 4
    assert groups == [], "no package is asked for a name that is known"
    assert own.make("Mine")[0].height == 3
    assert own.registered() == (*registry.BUILT_IN, "Mine")
    with pytest.raises(ValueError, match="no environment is called 'Other'"):
        own.spec("Other")
    assert groups == ["agentrl.environments"], "once"
    assert caplog.messages == ["entry point 'fails' (my_package:fails) of a package fails: KeyError: 'color'"]


@pytest.mark.parametrize("name", [name for name in known_baselines.BASELINES if "Sokoban" not in name])
def test_the_table_of_baselines_is_what_is_computed(name):
    assert known_baselines.BASELINES[name] == pytest.approx(known_baselines.compute(name), abs=1e-6)


def test_sokoban_is_wired_to_its_own_oracle_and_planner():
    spec = envs_jax.spec("SimpleSokoban")
    # Wall around a corridor: player, box, target.
    level = np.zeros((3, 5), np.int8)
    level[1, 1:4] = 5, 4, 2
    env, params = envs_jax.make("SimpleSokoban")
    random, optimal = spec.oracle(env, params, level[None], Budget(2, 1, 2))[:2]
    assert random.item() == pytest.approx(1 - 0.75**2)
    assert optimal.item() == 1.0
    (plan,) = spec.plan(env, params, level[None], 10)
    assert plan.tolist() == [3]
    lake = np.array([[3, 0, 2]], np.int8)
    (plan,) = envs_jax.spec("FrozenLake").plan(*envs_jax.make("FrozenLake"), lake[None], 10)
    assert plan.tolist() == [2, 2]
    assert envs_jax.spec("Bandit").plan is None


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "seed"), [*((tag, 0) for tag in SOKOBANS), ("Bandit", 1), ("FrozenLake", 1), ("CoordFrozenLake", 1)]
)
def test_environments_keep_the_contract(name, seed):
    check_env(*registry.make(name), key=jax.random.key(seed))


@pytest.mark.nightly
def test_a_registered_environment_passes_with_what_it_declares():
    report = check_registered("FrozenLake-deterministic", seeds=64)
    assert all(found.status == "pass" for found in report.results)


@pytest.mark.nightly
def test_a_pack_keeps_the_contract():
    env, pack = Sokoban(7, 7, 2, observation="grid_coord"), generate_pack(range(3), *TWO_BOXES)
    check_env(env, env.default_params.replace(levels=jnp.asarray(pack)), key=jax.random.key(0), num_steps=4)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [name for name in known_baselines.BASELINES if "Sokoban" in name])
def test_the_table_of_baselines_of_sokoban_is_what_is_computed(name):
    assert known_baselines.BASELINES[name] == pytest.approx(known_baselines.compute(name), abs=1e-6)


DIGESTS = {
    (5, 5, 1, 6): "f10bd79d29781ae1abbaa72a62ca162bb8fc5c0f370d36a383c2853440a0b84f",
    (8, 8, 2, 10): "5fc6fb9bfba47d1281e7919bd1c57d1290af383fd3fbc565faf33a8f26e05c9c",
}


@pytest.mark.nightly
@pytest.mark.parametrize("options", DIGESTS)
def test_the_levels_of_a_key_are_those_of_earlier_versions(options):
    assert hashlib.sha256(generate_pack(range(300), *options).tobytes()).hexdigest() == DIGESTS[options]


@pytest.mark.nightly
def test_larger_levels_follow_the_original():
    env, _ = SOKOBANS["LargerSokoban"]()
    with xla_settings.optimized():
        larger = np.asarray(jax.jit(jax.vmap(env.generator))(jax.random.split(jax.random.key(1), 1024)))
    check_all(larger, 2)
    lengths = np.array([len(solve(level)) for level in larger], float)
    np.testing.assert_allclose(lengths.mean(), 5.82, atol=0.2)
    np.testing.assert_allclose(100 * (lengths <= 5).mean(), 45.3, atol=3)
    np.testing.assert_allclose(100 * (lengths <= 10).mean(), 99.5, atol=1)
    np.testing.assert_allclose((larger > 0).sum((1, 2)).mean(), 18.2, atol=0.5)
    assert 0.02 < random_success(larger, 10)[:, -1].mean() < 0.032
    assert (plan_lengths(larger, 10) >= 0).mean() > 0.98


BOTH_WAYS = """
import gymnax
assert isinstance(gymnax.make("Catch-bsuite")[0], gymnax.environments.environment.Environment)
from gymnax.environments import environment, spaces
from envs_jax import gymnax_base
assert (environment, spaces) == (gymnax_base.environment, gymnax_base.spaces)
try:
    gymnax.nothing
except AttributeError as error:
    print(error)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("first", ["import envs_jax", "import gymnax", "from gymnax.environments import CartPole"])
def test_environments_of_gymnax_are_there(first):
    done = subprocess.run([sys.executable, "-c", first + BOTH_WAYS], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("module 'gymnax' has no attribute 'nothing'\n", "")
