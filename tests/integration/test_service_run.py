"""A run whose environment is a service in this process: it is trained, evaluated and exported."""

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


def test_a_run_on_a_service_is_trained_evaluated_and_exported(tmp_path):
    folder, file = tmp_path / "run", tiny_run.write_config(tmp_path, tiny_run.MAZE)
    words = ("--train.iterations", "2", "--train.validate_every", "0", "--tasks.0.validation", "")
    output = tiny_run.trained(folder, file, *words, "--tasks.0.sampling.kind", "distinct")
    last = tiny_run.metrics(folder)[-1]
    assert (last["iteration"], last["levels/maze/different"]) == (2, 4)
    assert last["env/failed_share"] == last["env/retries"] == last["env/lone_share"] == 0
    assert last["env/calls"] == 1 + 3
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["held_out"] is True
    assert summary["success"]["optimal"]["n"] == 4
    assert 0 <= summary["success"]["random"]["mean"] <= summary["success"]["optimal"]["mean"]
    assert summary["success"]["null"] == evaluate_scripted("maze", "null", items="12-15", turns=3)["success"]
    assert [line.split()[1] for line in output.splitlines() if line.startswith("│")][:2] == ["null", "random"]
    text = (folder / "trajectories.jsonl").read_text()
    assert "Your current position is at position" in text
    assert "Action:" in text

    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    found = json.loads(tiny_run.done("eval", str(folder), "--json"))
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    assert found["success"] == summary["success"]["trained"]
    assert found["episodes"] == found["success"]["n"] == found["random"]["n"] == found["null"]["n"] == 4
    assert found["outcomes"]["null"] == [0.0] * 4
    assert "has items of maze only" in tiny_run.refusal("eval", str(folder), "--env", "FrozenLake")
    tiny_run.done("export", str(folder), str(tmp_path / "out"))


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
