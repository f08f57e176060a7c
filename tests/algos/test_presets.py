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
