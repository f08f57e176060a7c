"""No default, bound or preset changes by accident: a run without a key would get other numbers."""

import json

import pytest
from paths import GOLDEN, module_of

from agentrl_jax.config import Config, decode, load_config, validate
from agentrl_jax.config.algo import AlgoConfig
from agentrl_jax.config.defaults import length_buckets, with_defaults
from agentrl_jax.config.imitation import IMITATION_CHUNK, ImitationConfig
from agentrl_jax.config.keys import takes_own
from agentrl_jax.config.load import leaves
from agentrl_jax.config.objectives import Gspo, Ppo
from agentrl_jax.config.presets import NAMES, read_preset
from agentrl_jax.config.rates import note, rates, with_rates
from agentrl_jax.setup import build_inputs

HOME = GOLDEN / "config"


def test_keys_bounds_defaults_and_presets_are_those_of_the_record():
    expected = dict(leaves(json.loads((HOME / "configuration.json").read_text())))
    found = dict(leaves(json.loads(json.dumps(module_of(HOME / "make_golden.py").snapshot()))))
    assert {key for key in {**expected, **found} if expected.get(key, "none") != found.get(key, "none")} == set()


LORA = {"pretrained": "smollm2-135m", "lora": {"rank": 8}}


@pytest.mark.parametrize(
    ("model", "policy", "critic", "what"),
    [
        ({}, 3e-4, 1e-3, "a small decoder from scratch"),
        (LORA, 1e-5, 1e-4, "low-rank adapters"),
        ({"pretrained": "smollm2-135m"}, 1e-6, 1e-5, "the weights of a pretrained model"),
        ({"pretrained": "smollm2-135m", "frozen_layers": 20}, 1e-6, 1e-5, "the weights of a pretrained model"),
    ],
)
def test_learning_rates_depend_on_what_is_trained(model, policy, critic, what):
    left_out = decode({"model": model})
    assert rates(left_out) == (policy, critic)
    for part in (what, f"optim.lr {policy:g} (the default)", f"optim.critic_lr {critic:g} (the default)"):
        assert part in note(left_out)
    given = decode({"model": model, "optim": {"lr": 0.5, "critic_lr": 0.25}})
    assert rates(given) == (0.5, 0.25)
    assert f"optim.lr 0.5 (given; the default is {policy:g})" in note(given)
    without = with_rates(decode({"model": model, "algo": {"preset": "grpo"}}))
    assert rates(without) == (policy, 0.0)
    assert (without.optim.lr, without.optim.critic_lr) == (policy, None)


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [("constant", [0.5, 1, 1, 1]), ("linear", [0.5, 0.75, 0.5, 0.25]), ("cosine", [0.5, 0.853553, 0.5, 0.146447])],
)
def test_learning_rates_rise_and_fall(schedule, factors):
    config = decode({"optim": {"schedule": schedule, "warmup": 2}, "train": {"iterations": 4}})
    rates = build_inputs.learning_rates(config)
    assert [float(rates(i)) for i in range(4)] == pytest.approx(factors, rel=1e-5)


def test_numbers_that_a_program_takes_as_arguments_are_not_part_of_it():
    """Otherwise a new value of one would compile the update again."""
    assert Ppo().traced() == {"clip_low": 0.2, "clip_high": 0.28}
    assert (Ppo().untraced().clip_low, Ppo().untraced().clip_high, Ppo().untraced().dual_clip) == (None, None, 3.0)
    assert Gspo(clip_low=0.1).untraced() == Gspo(clip_low=0.3).untraced()
    assert Ppo(dual_clip=2.0).untraced() != Ppo().untraced()
    with pytest.raises(TypeError, match="clip"):
        Ppo().replace(clip=1)


def test_imitation_is_divided_into_parts():
    for steps, parts in ((0, 0), (1, 1), (IMITATION_CHUNK, 1), (IMITATION_CHUNK + 1, 2)):
        assert ImitationConfig(levels=8, steps=steps).chunks == parts
    assert ImitationConfig(steps=50).chunks == 0


def test_rows_that_can_differ_are_cut_to_several_lengths():
    single = {"agent": "single_turn"}
    for changes, buckets in (
        ({}, 4),
        ({"algo": {"grad_accum_steps": 1}}, 1),
        ({"algo": {"grad_accum_steps": 2, "packing": True}}, 1),
        ({"algo": {"grad_accum_steps": 2, "length_buckets": 7}}, 7),
        (single, 1),
        (single | {"prompt": {"max_turns": 5, "max_response_tokens": 128}}, 4),
        (single | {"env": {"url": "local"}}, 4),
        ({"prompt": {"max_turns": 1}}, 1),
        ({"agent": {"kind": "window", "turns": 3}}, 4),
    ):
        config = decode({"algo": {"grad_accum_steps": 2}} | changes)
        assert length_buckets(config) == with_defaults(config).algo.length_buckets == buckets, changes
        assert build_inputs.learner_config(config).length_buckets == buckets, changes
    for name, published in {"demo": 1, "frozen_lake": 1, "sciworld": 1, "textcraft": 4}.items():
        assert load_config(f"experiments/{name}.yaml").algo.length_buckets == published, name


@pytest.mark.parametrize("name", NAMES)
def test_every_preset_is_a_valid_rule_whose_values_have_sources(name):
    preset = read_preset(name)
    assert len(preset.about) > 20
    written = {key for key, _ in leaves(preset.values, lists=False)}
    assert preset.sources.keys() == written
    assert all(len(source) > 5 for source in preset.sources.values())
    validate(decode({"algo": {"preset": name}, "prompt": {"max_turns": 10}}))


@pytest.mark.parametrize(("kind", "factor"), [("adamw", 1.0), ("muon", 1.0), ("lion", 0.2), ("sgd", 100.0)])
def test_default_rates_depend_on_the_optimizer(kind, factor):
    stages = [{"kind": "sft", "data": ["a.jsonl"], "steps": 5}, "rl"]
    config = decode({"optim": kind, "stages": stages})
    assert config.optim.lr == pytest.approx(3e-4 * factor)
    assert config.optim.critic_lr == pytest.approx(1e-3 * factor)
    assert config.imitation.lr == pytest.approx(1e-3 * factor)
    assert config.stages[0].lr == pytest.approx(3e-4 * factor)
    assert with_defaults(config) == config
    given = decode({"optim": {"kind": kind, "lr": 0.5}, "imitation": {"lr": 0.25}})
    assert (given.optim.lr, given.imitation.lr) == (0.5, 0.25)


def test_only_some_sections_may_be_functions_of_the_user():
    kinds = {name: takes_own(field.annotation) for name, field in AlgoConfig.model_fields.items()}
    assert {name for name, own in kinds.items() if own} == {"advantage", "objective", "filter"}
    assert takes_own(Config.model_fields["optim"].annotation)
    assert not takes_own(Config.model_fields["agent"].annotation)
