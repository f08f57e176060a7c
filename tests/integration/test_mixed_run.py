"""A run on a service, a compiled environment and a Python environment of the user, with windows of two turns."""

import contextlib
import json
import threading
import time

import psutil
import pytest
import tiny_run
from tiny_run import metrics as rows

from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.services.environments.maze.env import Maze

CONFIG = """
tasks:
  - {env: maze, groups: 2, items: 0-11, held_out: 12-20, sampling: {kind: distinct}}
  - {env: "compiled:toy_agent:Ladder", groups: 2, options: {steps: 9}}
  - {env: "python_worlds:Count", groups: 2}
prompt: {max_turns: 3, max_actions_per_turn: 2, max_actions: 6, max_response_tokens: 10}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
env: {url: local, processes: 1, observation_tokens: 96, deadline: 60.0}
agent: {kind: window, turns: 2}
rollout: {group_size: 2, context_tokens: 900, prefill_chunk: 32}
algo: {preset: grpo, filter: none, minibatches: 2}
train: {iterations: 2, validate_every: 0, trajectories_every: 1, trajectories: 12}
evaluation: {episodes: 4}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    home = tmp_path_factory.mktemp("mixed")
    tiny_run.trained(home / "run", tiny_run.write_config(home, CONFIG))
    return home / "run"


def test_environments_of_every_kind_are_trained_in_one_batch(trained):
    last, summary = rows(trained)[-1], tiny_run.summary(trained)
    assert {last[f"train/{task}/episodes"] for task in ("maze", "Ladder", "Count")} == {4}
    assert (last["iteration"], last["levels/maze/different"]) == (2, 4)
    assert last["rollout/logprob_gap_max"] < 1e-4, "a row is read as it was sampled"
    assert last["env/failed_share"] == last["env/retries"] == last["env/lone_share"] == 0
    assert last["env/calls"] == 2 * (1 + 3), "of two kinds that the host plays"
    assert "train/Count/number" in last, "what the environment says in info"
    assert {task: found["levels"] for task, found in summary["levels"].items()} == dict.fromkeys(
        ("maze", "Ladder", "Count"), 4
    )
    text = (trained / "trajectories.jsonl").read_text()
    assert "Your current position is at position" in text
    assert "at 0" in text
    assert "imported" in (trained / "environment-Count.log").read_text()


def test_a_run_on_several_kinds_is_evaluated_shown_and_exported(trained, tmp_path):
    stored = json.loads((trained / "environments.json").read_text())
    assert stored["Ladder"]["actions"] == ["Up", "Down"]
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    found = json.loads(tiny_run.done("eval", str(trained), "--json"))
    assert {path: path.read_bytes() for path in before} == before
    assert found["episodes"] == found["success"]["n"] == found["random"]["n"] == found["null"]["n"] == 4
    assert found["outcomes"]["null"] == [0.0] * 4
    assert found["null"] == evaluate_scripted("maze", "null", items="12-15", turns=3)["success"]
    # What the folder says is enough for these, where there is no such class.
    written = trained / "config.yaml"
    written.write_text(written.read_text().replace("toy_agent:Ladder", "no_such:Ladder"))
    tiny_run.done("view", str(trained), "--export", str(tmp_path / "page.html"))
    tiny_run.done("export", str(trained), str(tmp_path / "model"))
    described = json.loads((tmp_path / "model" / "config.json").read_text())
    assert described["max_position_embeddings"] >= stored["Ladder"]["context"] > 0
    tiny_run.done("export", str(trained), str(tmp_path / "atif"), "--trajectories", "atif")
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
    last = rows(folder)[-1]
    assert (last["iteration"], last["env/failed_share"]) == (2, 0)
    assert last["train/number"] > 0, "what the environment says in info"
    summary = tiny_run.summary(folder)
    assert (summary["success"]["optimal"]["mean"], summary["success"]["optimal"]["n"]) == (1.0, 8)
    assert summary["levels"]["Count"]["seen_levels"] == 0
    found = json.loads(tiny_run.done("eval", str(folder), "--env", "python_worlds:Count", "--json"))
    assert found["success"] == summary["success"]["trained"]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "served.yaml"
    path.write_text(tiny_run.MAZE)
    return str(path)


def servers():
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found += [child] if "serve" in child.cmdline() else []
    return found


@pytest.mark.nightly
def test_a_server_that_is_killed_in_the_middle_changes_nothing(file, tmp_path):
    """The run starts a server, which is killed twice; every number equals that of the undisturbed run."""
    calm, folder, killed = tmp_path / "calm", tmp_path / "run", []
    tiny_run.trained(calm, file)

    def kill():
        path = folder / "metrics.jsonl"
        while len(killed) < 2:
            time.sleep(0.02)
            done = len(path.read_text().splitlines()) if path.exists() else 0
            for server in servers() if done > 2 * len(killed) else ():
                server.kill()
                killed.append(server.pid)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    tiny_run.trained(folder, file, "--env.url", "")
    thread.join(5)
    assert len(set(killed)) == 2
    found, known = ([{k: v for k, v in row.items() if k[:4] != "env/"} for row in rows(run)] for run in (folder, calm))
    assert found == known
    assert all(row.get("env/failed_share", 0) == 0 for row in rows(folder))
    assert not servers()


@pytest.mark.nightly
def test_failed_episodes_are_dropped_and_recorded(file, tmp_path, monkeypatch):
    """Training items with even numbers break at the second move."""
    reset, step = Maze.reset, Maze.step

    def remembered(self, item):
        self.item, self.steps = item, 0
        return reset(self, item)

    def broken(self, action):
        self.steps += 1
        if self.item < 12 and self.item % 2 == 0 and self.steps == 2:
            raise RuntimeError("the maze has caved in")
        return step(self, action)

    monkeypatch.setattr(Maze, "reset", remembered)
    monkeypatch.setattr(Maze, "step", broken)
    folder, words = tmp_path / "run", "--imitation.levels 0 --imitation.steps 0 --env.retries 1 --env.max_failed 1.0"
    output = tiny_run.trained(folder, file, *words.split())
    learned = [row for row in rows(folder) if row["stage"] == "rl"]
    dropped = [json.loads(line) for line in (folder / "failures.jsonl").read_text().splitlines()]
    assert len(dropped) == sum(4 * row["env/failed_share"] for row in learned) > 0
    assert set(dropped[0]) == {"step", "task", "group", "member", "what", "error"}
    assert dropped[0]["error"] == "Lost: RuntimeError: the maze has caved in"
    assert "episodes failed" in output
    for row in learned:
        assert row["train/failed"] == row["env/failed_share"]
        assert row["env/failed_turns"] == (2.0 if row["env/failed_share"] else None)
