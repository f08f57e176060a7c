"""A run on several devices: it keeps its reference, and goes on after Ctrl-C with the same bits."""

import pytest
import tiny_run

from agentrl_jax.train.reinforcement import Reinforcement

OTHER = """
devices: 4
mesh: {fsdp: 2}
tasks: [{env: FrozenLake-deterministic, groups: 4, sampling: {kind: prioritized, levels: 6}}]
prompt: {style: ragen, max_turns: 2, max_actions_per_turn: 1, max_response_tokens: 8}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
agent: single_turn
rollout: {group_size: 2}
algo: {preset: starpo_grpo, minibatches: 2, kl: {coef: 0.5}}
optim: {lr: 0.03, schedule: linear}
imitation: {levels: 8, steps: 25, batch: 4, lr: 0.03}
train: {iterations: 3, checkpoint_every: 1, keep: 9, validate_every: 0, trajectories_every: 0}
evaluation: {episodes: 5}
"""
"""Group-relative learning with a reference, one turn of context, RAGEN's prompt, and sharded parameters."""


def test_a_run_on_several_devices_that_is_interrupted_ends_like_one_that_is_not(tmp_path, monkeypatch):
    file = tiny_run.write_config(tmp_path, OTHER)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    tiny_run.trained(straight, file)
    assert tiny_run.summary(straight)["devices"] == 4
    assert tiny_run.summary(straight)["success"]["trained"]["n"] == 5
    first, last = tiny_run.checkpoint(straight, 1), tiny_run.checkpoint(straight, 4)
    reference = {name: value for name, value in first.items() if name.startswith("['reference']")}
    assert reference
    for name, value in reference.items():
        policy = name.replace("['reference']", "['params']['policy']")
        assert value == first[policy] == last[name]
    assert any(last[name.replace("['reference']", "['params']['policy']")] != reference[name] for name in reference)
    rows = tiny_run.metrics(straight)[1:]
    assert rows[0]["actor/lr"] == pytest.approx(0.03)
    assert rows[2]["actor/lr"] == pytest.approx(0.01)
    assert rows[2]["actor/kl"] != 0

    with monkeypatch.context() as patch:
        iterate, called = Reinforcement.advance, []

        def interrupted(stage, state):
            called.append(1)
            if len(called) == 3:
                raise KeyboardInterrupt
            return iterate(stage, state)

        patch.setattr(Reinforcement, "advance", interrupted)
        code, _, err = tiny_run.command("train", file, "--run_dir", str(broken))
        assert (code, err.count("\n")) == (130, 1)
    assert tiny_run.checkpoints(broken) == [1, 2, 3]
    tiny_run.trained(broken, file)
    assert tiny_run.metrics(broken) == tiny_run.metrics(straight)
    assert tiny_run.checkpoint(broken, 4) == last
