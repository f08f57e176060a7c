"""A run on several devices, which keeps its reference."""

import pytest
import tiny_run

OTHER = """
devices: 4
mesh: {fsdp: 2}
tasks: [{env: FrozenLake-deterministic, groups: 4, sampling: {kind: prioritized, levels: 6}}]
prompt: {style: ragen, max_turns: 2, max_actions_per_turn: 1, max_response_tokens: 8}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
agent: single_turn
rollout: {group_size: 2}
algo: {preset: starpo_grpo, minibatches: 2, kl: {coef: 0.5}, tokens: {kind: clip_cov, low: 0.0, high: 9.0, share: 0.25},
  entropy_target: 1.0, entropy_step: 0.02}
optim: {lr: 0.03, schedule: linear, average_rate: 0.25}
train: {iterations: 3, checkpoint_every: 1, keep: 9, validate_every: 0, trajectories_every: 0}
evaluation: {episodes: 4}
"""
"""Group-relative learning with a reference, one turn of context, RAGEN's prompt, and sharded parameters; tokens are
chosen at random among those of all devices, and the policy has an average."""


POLICY = "['params']['policy']", "['reference']"


def test_a_run_on_several_devices_keeps_its_reference(tmp_path):
    run = tmp_path / "run"
    tiny_run.trained(run, tiny_run.write_config(tmp_path, OTHER))
    assert tiny_run.summary(run)["devices"] == 4
    assert tiny_run.summary(run)["success"]["trained"]["n"] == 4
    first, last = tiny_run.checkpoint(run, 0), tiny_run.checkpoint(run, 3)
    reference = {name: value for name, value in first.items() if name.startswith("['reference']")}
    assert reference
    for name, value in reference.items():
        policy = name.replace("['reference']", "['params']['policy']")
        assert value == first[policy] == last[name]
    assert any(last[name.replace("['reference']", "['params']['policy']")] != reference[name] for name in reference)
    rows = tiny_run.metrics(run)
    assert rows[0]["actor/lr"] == pytest.approx(0.03)
    assert rows[2]["actor/lr"] == pytest.approx(0.01)
    assert rows[2]["actor/kl"] != 0
    averages = [name for name in last if name.startswith("['average']")]
    assert len(averages) == len(reference)
    assert not any(last[name] in (last[name.replace("['average']", at)] for at in POLICY) for name in averages)

    one = tmp_path / "one"
    file = tiny_run.write_config(tmp_path, OTHER.replace("devices: 4\nmesh: {fsdp: 2}", "devices: 1"))
    tiny_run.trained(one, file)
    for ours, theirs in zip(rows, tiny_run.metrics(one), strict=True):
        assert 0.2 < ours["actor/chosen_tokens"] == pytest.approx(theirs["actor/chosen_tokens"])
        for name in ("actor/entropy_coef", "actor/grad_norm", "actor/entropy"):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-3)
