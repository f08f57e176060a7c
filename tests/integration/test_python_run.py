"""A run on a compiled and a Python environment of the user, with windows: trained, evaluated, shown and exported."""

import json

import pytest
import tiny_run

CONFIG = """
tasks: [{env: "compiled:toy_agent:Ladder", groups: 2, options: {steps: 9}}, {env: "python_worlds:Count", groups: 2}]
prompt: {max_turns: 3, max_actions_per_turn: 2, max_actions: 6, max_response_tokens: 8}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
env: {observation_tokens: 16}
agent: {kind: window, turns: 2}
rollout: {group_size: 2}
algo: {preset: grpo, filter: none}
train: {iterations: 2, validate_every: 0, trajectories_every: 1}
evaluation: {episodes: 4}
"""


def test_compiled_and_python_tasks_in_one_batch_with_windows(tmp_path):
    folder, file = tmp_path / "run", tiny_run.write_config(tmp_path, CONFIG)
    tiny_run.trained(folder, file, "--env.processes", "1")
    last = tiny_run.metrics(folder)[-1]
    assert {last[f"train/{task}/episodes"] for task in ("Ladder", "Count")} == {4}
    assert last["rollout/logprob_gap_max"] < 1e-4, "a row is read as it was sampled"
    assert last["env/failed_share"] == 0
    assert "train/Count/number" in last, "what the environment says in info"
    summary = tiny_run.summary(folder)
    assert "at 0" in (folder / "trajectories.jsonl").read_text()
    assert "imported" in (folder / "environment-Count.log").read_text()
    assert {task: found["levels"] for task, found in summary["levels"].items()} == {"Ladder": 4, "Count": 4}
    stored = json.loads((folder / "environments.json").read_text())
    assert stored["Ladder"]["actions"] == ["Up", "Down"]
    found = json.loads(tiny_run.done("eval", str(folder), "--env", "python_worlds:Count", "--json"))
    assert found["success"]["n"] == found["episodes"] == 4
    # What the folder says is enough for these, where there is no such class.
    written = folder / "config.yaml"
    written.write_text(written.read_text().replace("toy_agent:Ladder", "no_such:Ladder"))
    tiny_run.done("view", str(folder), "--export", str(tmp_path / "page.html"))
    tiny_run.done("export", str(folder), str(tmp_path / "model"))
    described = json.loads((tmp_path / "model" / "config.json").read_text())
    assert described["max_position_embeddings"] >= stored["Ladder"]["context"] > 0
    tiny_run.done("export", str(folder), str(tmp_path / "atif"), "--trajectories", "atif")
    steps = json.loads(sorted((tmp_path / "atif").glob("*.json"))[0].read_text())["steps"]
    first, second, third = (step["metrics"]["prompt_token_ids"] for step in steps if step["source"] == "agent")
    assert second[: len(first)] == first
    assert third[: len(second)] != second, "the first of three turns is not in a window of two"


ONE = """
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


@pytest.mark.nightly
def test_a_run_on_a_python_environment(tmp_path):
    folder, file = tmp_path / "run", tiny_run.write_config(tmp_path, ONE)
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
