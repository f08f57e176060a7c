import pytest

from agentrl_jax.algos.presets import PRESETS
from agentrl_jax.config import decode

KEYS = {
    "clip_low",
    "clip_high",
    "dual_clip",
    "value_clip",
    "entropy_coef",
    "kl_kind",
    "kl_coef",
    "kl_where",
    "advantage",
    "grpo_std",
    "gamma",
    "lam",
    "filter_ratio",
    "filter_kind",
    "aggregation",
    "whiten",
    "epochs",
    "minibatches",
}


@pytest.mark.parametrize("name", ["starpo", "starpo_grpo", "starpo_s"])
def test_every_preset_is_a_valid_and_complete_rule(name):
    assert PRESETS[name].keys() == KEYS
    rule = decode({"algo": {"preset": name}}).algo
    assert {key: getattr(rule, key) for key in KEYS} == PRESETS[name]
    assert (rule.kl_coef > 0) == (rule.kl_where != "none")


def test_starpo_s_differs_from_starpo_in_filter_clip_and_steps_alone():
    differing = {key for key in KEYS if PRESETS["starpo_s"][key] != PRESETS["starpo"][key]}
    assert differing == {"clip_high", "filter_ratio", "minibatches"}
    assert PRESETS["starpo_s"]["clip_high"] > PRESETS["starpo_s"]["clip_low"]
