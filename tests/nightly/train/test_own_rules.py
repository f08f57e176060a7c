"""A run by rules of the user: a stop changes no bit, devices do not matter, and changed code is noticed."""

import json
import shutil

import numpy as np
import pytest
import tiny_run
from refusing import refusal

from agentrl_jax.config import load_config
from agentrl_jax.train.run import train

RULES = """
import jax.numpy as jnp
from agentrl_jax.rules import AdvantageInputs, FilterInputs, ObjectiveInputs, Trajectory, groups, rule

@rule(needs=("groups", "devices"))
def scaled(inputs: AdvantageInputs, *, strength: float = 1.0):
    centered, std = groups.center_and_std(inputs.scores, inputs.valid)
    largest = inputs.devices.largest(jnp.max(std))
    return strength * (centered / (largest + 0.1)).reshape(-1, 1) * inputs.mask

@rule(needs=("ratio",))
def soft(inputs: ObjectiveInputs, *, cap: float = 2.0):
    return -inputs.advantage * jnp.minimum(jnp.exp(jnp.minimum(inputs.logprob - inputs.old_logprob, 5.0)), cap)

@rule()
def uneven(inputs: FilterInputs, *, least: float = 1e-6):
    return groups.center_and_std(inputs.returns, inputs.valid)[1] > least

@rule()
def moves(trajectory: Trajectory, *, power: float = 1.0):
    return jnp.sum(trajectory.turn.actions >= 0, axis=2) ** power

@rule()
def length(trajectory: Trajectory):
    return jnp.sum(trajectory.response.length), jnp.sum(trajectory.num_turns)
"""
RULE = """{preset: grpo, minibatches: 2, advantage: [{kind: NAME:scaled, strength: 2.0}, {kind: rloo, weight: 0.5}],
  objective: NAME:soft, filter: NAME:uneven, rewards: {busy: {kind: NAME:moves, weight: 0.1}},
  schedules: {advantage.0.strength: {end: 0.5, iterations: 4}, rewards.busy.power: {end: 2.0, iterations: 4}}}"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    """The configuration of a run, whose rules are in a module of the folder."""
    monkeypatch.syspath_prepend(tmp_path)
    name = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(RULES)
    rule = " ".join(RULE.replace("NAME", name).split())
    text = tiny_run.CONFIG.replace("{preset: starpo_s, filter: {ratio: 0.5}}", rule)
    return tiny_run.write_config(tmp_path, text.replace("train: {", f"train: {{metrics: {{told: {name}:length}}, "))


def test_a_stopped_run_has_the_bits_of_one_that_was_not(file, tmp_path):
    whole, again = tmp_path / "whole", tmp_path / "again"
    tiny_run.trained(whole, file)
    assert "going on from the checkpoint" in tiny_run.resumed(whole, again, file)
    assert tiny_run.metrics(again) == tiny_run.metrics(whole)
    assert tiny_run.summary(again) == tiny_run.summary(whole)
    assert [path.suffix for path in (whole / "rules").iterdir()] == [".txt"]


def test_two_devices_learn_what_one_does(file, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    tiny_run.trained(one, file)
    train(load_config(file, ["--run_dir", str(two), "--devices", "2"]))
    measured = "own/told", "reward/busy_mean", "reward/busy_success"
    for name in ("actor/policy_loss", "critic/advantage_max", "rollout/filter_kept_groups", *measured):
        values = [[row[name] for row in tiny_run.metrics(run) if row["stage"] == "rl"] for run in (one, two)]
        np.testing.assert_allclose(*values, rtol=1e-3, atol=1e-5, err_msg=name)


def test_changed_code_is_a_change_of_the_run(file, tmp_path):
    run = tmp_path / "run"
    tiny_run.trained(run, file)
    (module,) = tmp_path.glob("own_*.py")
    module.write_text(RULES + "# another rule\n")
    more = ["--run_dir", str(run), "--train.iterations", "5"]
    before = (run / "config.yaml").read_bytes()
    error = refusal(train, load_config(file, more), accept_changes=True)
    assert "--rules_changed" in str(error)
    assert (run / "config.yaml").read_bytes() == before
    train(load_config(file, more), accept_changes=True, rules_changed=True)
    row = json.loads((run / "config.history.jsonl").read_text().splitlines()[-1])
    assert {"algo.advantage.terms.0.rule", "algo.objective", "algo.filter", "algo.rewards.busy"} < {*row["changed"]}
    assert len(list((run / "rules").iterdir())) == 2
    shutil.rmtree(run)
