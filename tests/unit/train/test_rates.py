"""Learning rates by what is trained, and the notes at the start of a run."""

import re

import pytest
import yaml

from agentrl_jax.config import load_config, load_resolved, save_resolved
from agentrl_jax.config.rates import rates
from agentrl_jax.setup import build, start

LORA = {"model": {"pretrained": "smollm2-135m", "lora": {"rank": 8}}}
WHOLE = {"model": {"pretrained": "smollm2-135m"}}
FROZEN = {"model": {"pretrained": "smollm2-135m", "frozen_layers": 20}}


@pytest.fixture
def load(tmp_path):

    def run(keys):
        file = tmp_path / "run.yaml"
        file.write_text(yaml.safe_dump(keys))
        return load_config(file)

    return run


@pytest.mark.parametrize(
    ("keys", "lr", "critic_lr", "words"),
    [
        ({}, 3e-4, 1e-3, "a small decoder from scratch"),
        (LORA, 1e-5, 1e-4, "low-rank adapters"),
        (WHOLE, 1e-6, 1e-5, "the weights of a pretrained model"),
        (FROZEN, 1e-6, 1e-5, "the weights of a pretrained model"),
    ],
)
def test_rates_left_out_are_those_of_what_is_trained(load, tmp_path, keys, lr, critic_lr, words):
    config = load(keys)
    assert (config.optim.lr, config.optim.critic_lr) == rates(config) == (lr, critic_lr)
    numbers = build.update_settings(config, 0.5)
    assert (float(numbers.lr), float(numbers.critic_lr)) == (pytest.approx(lr / 2), pytest.approx(critic_lr / 2))
    for part in (f"optim.lr {lr:g} (the default)", f"optim.critic_lr {critic_lr:g} (the default)", words):
        assert part in start.notes(config)[0]
    save_resolved(config, tmp_path / "config.yaml")
    assert yaml.safe_load((tmp_path / "config.yaml").read_text())["optim"]["lr"] == lr
    assert load_resolved(tmp_path / "config.yaml") == config


def test_given_rates_win_and_a_rule_without_a_critic_has_none(load):
    config = load({**WHOLE, "optim": {"lr": 2e-5}, "algo": {"preset": "grpo"}})
    assert (config.optim.lr, config.optim.critic_lr) == (2e-5, None)
    assert float(build.update_settings(config, 1.0).critic_lr) == 0.0
    assert "optim.lr 2e-05 (given; the default is 1e-06)" in start.notes(config)[0]
    config = load({"algo": {"preset": "grpo"}})
    assert (config.optim.lr, config.optim.critic_lr, rates(config)) == (3e-4, None, (3e-4, 0.0))


CLIPS = "clip_low clip_high"


@pytest.mark.parametrize(
    ("algo", "idle"),
    [
        ("preset: starpo_s", f"{CLIPS} dual_clip value_clip"),
        ("preset: starpo_s, advantage: {value_clip: null}", f"{CLIPS} dual_clip"),
        ("preset: grpo, minibatches: 1", CLIPS),
        ("preset: starpo_s, mismatch: {ratio_from: rollout}", "value_clip"),
        ("preset: cispo, minibatches: 1", f"{CLIPS} objective"),
        *(("preset: starpo", ""), ("preset: starpo_s, epochs: 2", ""), ("preset: dapo", ""), ("preset: rloo", "")),
    ],
)
def test_a_clip_that_cannot_bind_is_said(load, algo, idle):
    _, *lines = start.notes(load({"algo": yaml.safe_load(f"{{{algo}}}")}))
    keys = re.findall(r"algo\.(?:\w+\.)?(\w+)", lines[0].split(" do")[0]) if lines else []
    assert (len(lines), " ".join(keys)) == (int(bool(idle)), idle)


def test_a_critic_that_is_not_there_is_said(load):
    lines = start.notes(load({"algo": {"preset": "grpo"}, "model": {"critic": "separate"}}))
    assert len(lines) == 2
    assert lines[1].startswith("model.critic separate does nothing in this run")
    assert len(start.notes(load({"algo": {"preset": "starpo"}, "model": {"critic": "separate"}}))) == 1


def test_the_critic_warms_up_for_its_iterations(load):
    config = load({"train": {"critic_warmup": 3}})
    held = [float(build.update_settings(config, 1.0, i).freeze_policy) for i in range(5)]
    assert held == [1.0, 1.0, 1.0, 0.0, 0.0]
