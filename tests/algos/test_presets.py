import dataclasses

import pytest

from agentrl_jax.algos.presets import PRESETS
from agentrl_jax.config import decode, validate
from agentrl_jax.config_tree import AlgoConfig

ASKED_FOR = {"ppo", "grpo", "dr_grpo", "rloo", "reinforce_pp", "remax", "gigpo", "dapo", "gspo", "cispo"} | {
    "starpo",
    "starpo_s",
    "starpo_s2",
    "scaling_inter",
}
FIELDS = {field.name for field in dataclasses.fields(AlgoConfig)}


def test_the_names_that_users_expect_are_there():
    assert PRESETS.keys() >= ASKED_FOR


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_rule_whose_values_have_sources(name):
    rule = PRESETS[name]
    assert rule.values.keys() == rule.sources.keys() <= FIELDS
    assert rule.about
    assert all(rule.sources.values())
    config = decode({"algo": {"preset": name}, "prompt": {"max_turns": 10}})
    for key, value in rule.values.items():
        assert getattr(config.algo, key) == value, key
    validate(config)
    assert (config.algo.kl_coef > 0) == (config.algo.kl_where != "none")
    assert AlgoConfig.from_preset(name) == config.algo


def test_starpo_s_differs_from_starpo_in_filter_clip_and_steps_alone():
    plain, stable = PRESETS["starpo"].values, PRESETS["starpo_s"].values
    differing = {key for key in plain if plain[key] != stable[key]}
    assert differing == {"clip_high", "filter_ratio", "minibatches"}
    assert stable["clip_high"] > stable["clip_low"]


@pytest.mark.parametrize("name", ["dr_grpo", "rloo", "remax", "reinforce_pp", "reinforce_pp_baseline", "dapo"])
def test_what_a_paper_does_not_have_is_not_taken_from_another(name):
    algo = AlgoConfig.from_preset(name)
    assert algo.entropy_coef == 0.0
    if name in ("rloo", "remax"):
        assert algo.objective == "policy_gradient"
        assert (algo.epochs, algo.minibatches, algo.dual_clip) == (1, 1, None)
    else:
        assert algo.objective == "clip"
        assert (algo.clip_low, algo.clip_high) == (0.2, 0.28 if name == "dapo" else 0.2)


def test_dapo_takes_the_paper_s_number_of_updates():
    algo = AlgoConfig.from_preset("dapo")
    assert algo.epochs * algo.minibatches == 16
    assert (algo.overlong_buffer, algo.overlong_penalty) == (0.2, 1.0)
