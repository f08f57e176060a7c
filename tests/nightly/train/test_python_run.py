"""A run on a Python environment of the user: imitated, trained, gone on with in a process, and evaluated."""

import json

import tiny_run

CONFIG = """
tasks: [{env: "python_worlds:Count", groups: 4}]
prompt: {max_turns: 3, max_actions_per_turn: 2, max_actions: 6, max_response_tokens: 8, stop_at_answer: true}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
env: {observation_tokens: 16}
agent: single_turn
rollout: {group_size: 2}
algo: {preset: grpo}
imitation: {levels: 8, steps: 25, batch: 4, lr: 0.03}
train: {iterations: 1, checkpoint_every: 1, validate_every: 1, validation_episodes: 8, trajectories_every: 1}
evaluation: {episodes: 8}
"""


def test_a_run_on_a_python_environment(tmp_path):
    folder, file = tmp_path / "run", tiny_run.write_config(tmp_path, CONFIG)
    tiny_run.trained(folder, file)
    tiny_run.trained(folder, file, "--env.processes", "1", "--train.iterations", "2")
    last = tiny_run.metrics(folder)[-1]
    assert (last["iteration"], last["env/failed_share"]) == (2, 0)
    assert last["train/number"] > 0, "what the environment says in info"
    summary = tiny_run.summary(folder)
    assert (summary["success"]["optimal"]["mean"], summary["success"]["optimal"]["n"]) == (1.0, 8)
    assert summary["levels"]["Count"]["seen_levels"] == 0
    found = json.loads(tiny_run.done("eval", str(folder), "--env", "python_worlds:Count", "--json"))
    assert found["success"] == summary["success"]["trained"]
