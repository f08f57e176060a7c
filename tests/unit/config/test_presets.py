import pytest

from agentrl_jax.config import AlgoConfig, decode, to_dict, validate
from agentrl_jax.config.load import leaves
from agentrl_jax.config.presets import NAMES, read_preset
from agentrl_jax.errors import BadValue

ASKED_FOR = {"ppo", "grpo", "dr_grpo", "rloo", "reinforce_pp", "remax", "gigpo", "dapo", "gspo", "cispo"} | {
    "starpo",
    "starpo_s",
    "starpo_s2",
    "scaling_inter",
}


def algo_of(name):
    return decode({"algo": {"preset": name}}).algo


def test_the_names_that_users_expect_are_there():
    assert set(NAMES) >= ASKED_FOR


def test_an_unknown_name_is_refused():
    with pytest.raises(BadValue) as refused:
        read_preset("best")
    assert (refused.value.key, refused.value.value) == ("algo.preset", "best")


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_a_valid_rule_whose_values_have_sources(name):
    preset = read_preset(name)
    assert len(preset.about) > 20
    written = {key for key, _ in leaves(preset.values, lists=False)}
    assert preset.sources.keys() == written
    assert all(len(source) > 5 for source in preset.sources.values())
    config = decode({"algo": {"preset": name}, "prompt": {"max_turns": 10}})
    validate(config)
    decoded = to_dict(config)["algo"]
    for key, value in preset.values.items():
        if isinstance(value, dict):
            assert value.items() <= decoded[key].items()
        else:
            assert decoded[key] in (value, {"kind": value})


def test_starpo_s_differs_from_starpo_in_filter_clip_and_steps_alone():
    plain, stable = algo_of("starpo"), algo_of("starpo_s")
    differing = {key for key in AlgoConfig.model_fields if getattr(plain, key) != getattr(stable, key)}
    assert differing == {"preset", "objective", "filter", "minibatches"}
    assert plain.objective.replace(clip_high=stable.objective.clip_high) == stable.objective
    assert stable.objective.clip_high > stable.objective.clip_low


@pytest.mark.parametrize("name", ["dr_grpo", "rloo", "remax", "reinforce_pp", "reinforce_pp_baseline", "dapo"])
def test_what_a_paper_does_not_have_is_not_taken_from_another(name):
    algo = algo_of(name)
    assert algo.entropy_coef == 0.0
    if name in ("rloo", "remax"):
        assert algo.objective.kind == "policy_gradient"
        assert (algo.epochs, algo.minibatches) == (1, 1)
    else:
        assert algo.objective.kind == "ppo"
        assert (algo.objective.clip_low, algo.objective.clip_high) == (0.2, 0.28 if name == "dapo" else 0.2)
        assert algo.objective.dual_clip == (10.0 if name == "dapo" else None)


def test_dapo_takes_the_paper_s_number_of_updates():
    algo = algo_of("dapo")
    assert algo.epochs * algo.minibatches == 16
    assert (algo.overlong_buffer, algo.overlong_penalty) == (0.2, 1.0)
