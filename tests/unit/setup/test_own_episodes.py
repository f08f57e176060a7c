"""Functions of the user of the episodes: parts of the reward, and metrics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from refusing import refusal

from agentrl_jax.config import decode, load_resolved, save_resolved, to_dict
from agentrl_jax.errors import refusals
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.returns import part_values, reward_rule, turn_rewards
from agentrl_jax.setup import build_inputs
from agentrl_jax.setup.own_episodes import check_episode_functions, made_episodes
from agentrl_jax.setup.own_rules import with_own_rules
from agentrl_jax.setup.programs import Programs

RULES = """
@rule()
def moves(trajectory: Trajectory, *, power: float = 1.0):
    return jnp.sum(trajectory.turn.actions >= 0, axis=2) ** power

@rule()
def told(trajectory: Trajectory, *, least: float = 0.0, name: str = "moved"):
    played = trajectory.turn_mask & ~trajectory.failed[:, None]
    value = trajectory.turn.info[name]
    return jnp.sum(jnp.where(played, jnp.maximum(value, least), 0.0)), jnp.sum(played)
"""
KEYS = ("moved", "other")


def config_of(name, **train):
    parts = {"tokens": {"weight": -0.5}, "busy": {"kind": f"{name}:moves", "weight": 0.25, "power": 2}}
    return decode({"algo": {"preset": "grpo", "rewards": parts}, "train": {"metrics": train}})


def test_parts_and_metrics_of_the_user_are_those_of_their_functions(module, tmp_path):
    name = module(RULES)
    config = with_own_rules(config_of(name, high=f"{name}:told", low={"kind": f"{name}:told", "least": -0.5}))
    check_episode_functions(config, KEYS)
    save_resolved(config, tmp_path / "config.yaml")
    stored = load_resolved(tmp_path / "config.yaml")
    assert (stored.algo.rewards, stored.train.metrics) == (config.algo.rewards, config.train.metrics)
    assert config.algo.traced_keys() | {"rewards.busy.power": 2.0, "rewards.busy.weight": 0.25} == (
        config.algo.traced_keys()
    )

    episodes, numbers = made_episodes(KEYS), {"tokens.weight": -0.5, "busy.weight": 0.25, "busy.power": 2.0}
    moves = np.sum(np.asarray(episodes.turn.actions) >= 0, axis=2)
    settings = build_inputs.update_settings(config, 1.0)
    rule = settings.rewards(build_inputs.reward_parts(config))
    assert {key: float(x) for key, x in rule.numbers.items()} == numbers
    played = np.asarray(episodes.turn_mask)
    np.testing.assert_allclose(part_values(episodes, rule)["busy"].value, played * moves**2.0)
    penalty = float(settings.format_penalty) * np.asarray(episodes.turn.format_error)
    expected = episodes.turn.reward + penalty - 0.5 * episodes.response.length + 0.25 * moves**2
    np.testing.assert_allclose(turn_rewards(episodes, rule), np.where(played, expected, 0.0), rtol=1e-5, atol=1e-6)

    program = Programs(make_mesh(1)).metrics(config.train.metrics)
    found = program(episodes, {metric: part.numbers for metric, part in config.train.metrics.items()})
    counted = played & ~np.asarray(episodes.failed)[:, None]
    told = np.asarray(episodes.turn.info["moved"])[counted]
    assert float(found["own/high"]) == pytest.approx(np.maximum(told, 0.0).mean(), rel=1e-5)
    assert float(found["own/low"]) == pytest.approx(np.maximum(told, -0.5).mean(), rel=1e-5)


def test_nothing_that_was_counted_is_zero(module):
    name = module("@rule()\ndef none(trajectory: Trajectory):\n    return 0.0 * jnp.sum(trajectory.num_turns), 0.0\n")
    config = with_own_rules(config_of(module(RULES), none=f"{name}:none"))
    check_episode_functions(config, KEYS)
    found = Programs(make_mesh(1)).metrics(config.train.metrics)(made_episodes(KEYS), {"none": {}})
    assert float(found["own/none"]) == 0.0


PARTS = {
    "return trajectory.returns": "expected a number for each turn",
    "return trajectory.turn.reward / 0": "not finite",
    "return trajectory.turn.reward - jnp.mean(trajectory.turn.reward)": "other episodes",
    "return trajectory.turn.info['gone']": "gone",
    "return trajectory.turn.reward if trajectory.turn.reward.sum() > x else 0": "decides in Python",
    "jax.debug.print('{}', x); return trajectory.turn.reward": "calls Python",
}
METRICS = {
    "return trajectory.turn.reward": "expected (sum, count)",
    "return jnp.sum(trajectory.turn.reward)": "expected (sum, count)",
    "return jnp.sum(trajectory.turn.reward) / 0, 1": "not finite",
}


@pytest.mark.parametrize(
    ("section", "body", "why"),
    [*(("rewards", *each) for each in PARTS.items()), *(("metrics", *each) for each in METRICS.items())],
)
def test_what_a_function_of_episodes_does_wrong_is_one_sentence(section, body, why, module):
    name = module(f"@rule()\ndef mine(trajectory: Trajectory, *, x: float = 1.0):\n    {body}\n")
    key = "algo.rewards" if section == "rewards" else "train.metrics"
    config = with_own_rules(decode({key.partition(".")[0]: {section: {"mine": f"{name}:mine"}}}))

    def checked():
        with refusals():
            check_episode_functions(config, KEYS)

    error = refusal(checked)
    assert (error.key, error.value) == (f"{key}.mine", f"{name}:mine")
    assert why in str(error)
    assert "\n" not in str(error)


def test_a_number_that_no_environment_tells_is_refused():
    config = decode({"algo": {"rewards": {"steps": {"kind": "info", "key": "stepz"}}}})

    def checked():
        with refusals():
            check_episode_functions(config, KEYS)

    assert (refusal(checked).key, refusal(checked).value) == ("algo.rewards.steps.key", "stepz")


def test_no_run_brings_the_code_of_a_part_or_a_metric(module, tmp_path):
    name = module(RULES)
    for given in (config_of(name), decode({"train": {"metrics": {"told": f"{name}:told"}}})):
        save_resolved(given, tmp_path / "config.yaml")
        assert refusal(load_resolved, tmp_path / "config.yaml").value.startswith(name)
    held = to_dict(with_own_rules(config_of(name)))
    held["algo"]["rewards"]["busy"]["source"] = "sha256:0"
    assert refusal(with_own_rules, decode(held), unchanged=True).key == "algo.rewards.busy"


def test_a_rollout_has_the_numbers_of_the_parts(module):
    config = with_own_rules(config_of(module(RULES)))

    class Env:
        env_params = ()

    settings = build_inputs.rollout_settings(config, Env(), 2, 1.0)
    rule = reward_rule(settings, build_inputs.reward_parts(config))
    assert jax.tree.map(float, rule.numbers) == {"tokens.weight": -0.5, "busy.weight": 0.25, "busy.power": 2.0}
    assert isinstance(hash(rule.parts), int)
    assert settings.reward_numbers["busy.weight"].dtype == jnp.float32
