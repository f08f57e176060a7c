"""A run that its validations end, with an average of the policy, chosen tokens and an entropy that has a target."""

import jax
import numpy as np
import tiny_run

from agentrl_jax.runs.checkpoint import Checkpoints
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.setup.policy import load_policy

STOP = "train: {stop: {patience: 1}, best: {metric: validation/FrozenLake/return, mode: min, evaluate: true}, "
RULE = "algo: {tokens: {kind: top_entropy, share: 0.5}, entropy_target: 0.5, epochs: 2, "


def test_a_run_ends_by_its_validations_at_the_same_iteration_after_a_stop(tmp_path):
    text = tiny_run.CONFIG.replace("train: {", STOP).replace("iterations: 4", "iterations: 40")
    text = text.replace("algo: {", RULE).replace("optim: {", "optim: {average_rate: 0.3, ")
    file, whole, again = tiny_run.write_config(tmp_path, text), tmp_path / "whole", tmp_path / "again"
    tiny_run.trained(whole, file)
    found = tiny_run.summary(whole)
    assert found["stopped_by"] == "patience"
    assert found["iterations"] < 40
    rows = [row for row in tiny_run.metrics(whole) if "validation/success" in row]
    values = [row["validation/FrozenLake/return"] for row in rows]
    assert values[-1] >= min(values[:-1])
    assert all(later < min(values[: i + 1]) for i, later in enumerate(values[1:-1]))
    assert (found["best"]["value"], found["best"]["iteration"]) == (min(values), rows[-2]["iteration"])
    learned = [row for row in tiny_run.metrics(whole) if row["stage"] == "rl"]
    assert all(0 < row["actor/chosen_tokens"] < 1 for row in learned)
    assert len({row["actor/entropy_coef"] for row in learned}) > 1
    tiny_run.resumed(whole, again, file)
    assert tiny_run.metrics(again) == tiny_run.metrics(whole)
    assert tiny_run.summary(again) == found

    config = read_config(whole)
    policy = load_policy(whole, config, "best")
    with Checkpoints(whole / "checkpoints", keep=None) as checkpoints:
        like = {"average": policy.params["policy"], "params": {"policy": policy.params["policy"]}}
        stored = checkpoints.restore_part(policy.step, jax.eval_shape(lambda: like))
    equal = [jax.tree.all(jax.tree.map(np.array_equal, stored[name], like[name])) for name in like]
    assert equal == [True, False]
