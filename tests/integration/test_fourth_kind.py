"""A kind of environments that the product does not know: trained, evaluated, shown, exported, checked and played."""

import io
import json

import pytest
import stories
import tiny_run

from agentrl_jax.environments import kinds

CONFIG = """
tasks: [{env: "story:2", groups: 2, items: 0-7, held_out: 8-11}]
prompt: {style: bare, max_turns: 2, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
env: {observation_tokens: 16}
rollout: {group_size: 2}
algo: {preset: grpo, filter: none}
train: {iterations: 1, trajectories_every: 1, validation_episodes: 4}
evaluation: {episodes: 4}
"""


def register(monkeypatch):
    monkeypatch.setattr(kinds, "_kinds", [*kinds._kinds])
    kinds.register(stories.KIND)


@pytest.fixture(autouse=True)
def kind(monkeypatch):
    register(monkeypatch)


def test_a_fourth_kind_is_checked_and_played_by_scripts_and_by_hand(monkeypatch):
    checks = json.loads(tiny_run.done("envs", "--check", "story:2", "--json"))
    assert checks["status"] == "pass", checks
    found = json.loads(tiny_run.done("eval", "--env", "story:2", "--policy", "oracle", "--items", "3,5", "--json"))
    assert (found["success"]["mean"], found["success_rule"]) == (1, "all words are said")
    monkeypatch.setattr("sys.stdin", io.StringIO("3x0\nno\n3x1\n"))
    code, out, err = tiny_run.command("play", "story:2", "--seed", "3")
    assert code == 0, err
    assert out.count("Say 3x1") == 2
    assert "Solved, ended by the environment; return 1." in err


def test_what_a_fourth_kind_does_not_take_is_refused(tmp_path):
    file = tiny_run.write_config(tmp_path, CONFIG)
    assert "tasks.0.levels" in tiny_run.refused(tmp_path, file, "--tasks.0.levels", "x.npy")
    assert "env.processes" in tiny_run.refused(tmp_path, file, "--env.processes", "2")
    assert "stories" in tiny_run.refused(tmp_path, file, "--prompt.style", "compact")


@pytest.mark.nightly
def test_a_fourth_kind_is_trained_evaluated_shown_and_exported(tmp_path):
    folder, file = tmp_path / "run", tiny_run.write_config(tmp_path, CONFIG)
    tiny_run.trained(folder, file)
    summary = tiny_run.summary(folder)
    assert [summary["success"][name]["mean"] for name in ("null", "optimal")] == [0, 1]
    assert "Say 8x0" not in (text := (folder / "trajectories.jsonl").read_text())
    assert "Say " in text
    found = json.loads(tiny_run.done("eval", str(folder), "--json"))
    assert found["success"] == summary["success"]["trained"]
    tiny_run.done("view", str(folder), "--export", str(tmp_path / "page.html"))
    tiny_run.done("export", str(folder), str(tmp_path / "model"))
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["max_position_embeddings"] > 2 * 6
