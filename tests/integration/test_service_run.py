"""Runs whose environments are services: in this process, behind a server, and behind one that is killed."""

import json
import os
import signal
import threading
import time

import psutil
import pytest
import tiny_run
from service_run import CONFIG, rows

from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.services.environments.maze import Maze


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("served") / "served.yaml"
    path.write_text(CONFIG)
    return str(path)


def train(file, folder, *words):
    return tiny_run.command("train", file, "--run_dir", str(folder), *words)


@pytest.fixture(scope="module")
def calm(file, tmp_path_factory):
    """A run in this process: its folder and its output."""
    folder = tmp_path_factory.mktemp("calm") / "run"
    code, output, error = train(file, folder)
    assert code == 0, error
    return folder, output


def test_a_run_on_a_service_ends_well(calm):
    folder, output = calm
    last = rows(folder)[-1]
    assert last["iteration"] == 4
    assert last["env/failed_share"] == last["env/retries"] == last["env/lone_share"] == 0
    assert last["env/calls"] == 1 + 3
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["held_out"] is True
    assert summary["success"]["optimal"]["n"] == 4
    assert 0 <= summary["success"]["random"]["mean"] <= summary["success"]["optimal"]["mean"]
    assert "after imitation" in output
    assert summary["success"]["null"] == evaluate_scripted("maze", "null", items="12-15", turns=3)["success"]
    assert [line.split()[1] for line in output.splitlines() if line.startswith("│")][:2] == ["null", "random"]
    text = (folder / "trajectories.jsonl").read_text()
    assert "Your current position is at position" in text
    assert "Action:" in text


def servers():
    """Returns the child processes that are servers."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "serve" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue
    return found


def test_a_server_that_is_killed_in_the_middle_changes_nothing(file, calm, tmp_path):
    """The run starts a server, which is killed twice; every number equals that of the undisturbed run."""
    folder, killed = tmp_path / "run", []

    def kill():
        while len(killed) < 2:
            time.sleep(0.02)
            path = folder / "metrics.jsonl"
            done = len(path.read_text().splitlines()) if path.exists() else 0
            for server in servers() if done > 2 * len(killed) else ():
                os.kill(server.pid, signal.SIGKILL)
                killed.append(server.pid)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    code, _, error = train(file, folder, "--env.url", "")
    assert code == 0, error
    thread.join(5)
    assert len(set(killed)) == 2
    same = [{**row, **{key: 0 for key in row if key.startswith("env/")}} for row in rows(folder)]
    assert same == [{**row, **{key: 0 for key in row if key.startswith("env/")}} for row in rows(calm[0])]
    assert all(row.get("env/failed_share", 0) == 0 for row in rows(folder))
    assert not servers()


def test_a_server_that_is_not_there_is_named(file, tmp_path):
    words = ("--env.url", "http://127.0.0.1:9", "--env.deadline", "2")
    code, _, error = train(file, tmp_path / "run", *words)
    assert code == 2
    assert "maze at http://127.0.0.1:9" in error
    assert "ConnectError" in error
    assert error.count("\n") == 1


@pytest.fixture
def breaking(monkeypatch):
    """Mazes whose training items with even numbers break at the second move."""
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


WITHOUT_IMITATION = ("--imitation.levels", "0", "--imitation.steps", "0", "--env.retries", "1")


def test_too_many_failures_end_the_run_with_its_checkpoint(file, tmp_path, breaking):
    folder = tmp_path / "run"
    code, _, error = train(file, folder, *WITHOUT_IMITATION, "--env.max_failed", "0.0")
    assert code == 2
    for part in (
        "of the episodes failed in maze in this process",
        "the maze has caved in",
        "env.max_failed",
        "is kept",
    ):
        assert part in error
    assert tiny_run.checkpoints(folder)


def test_failed_episodes_are_dropped_and_recorded(file, tmp_path, breaking):
    folder = tmp_path / "run"
    code, output, error = train(file, folder, *WITHOUT_IMITATION, "--env.max_failed", "1.0")
    assert code == 0, error
    learned = [row for row in rows(folder) if row["stage"] == "rl"]
    dropped = [json.loads(line) for line in (folder / "failures.jsonl").read_text().splitlines()]
    assert len(dropped) == sum(4 * row["env/failed_share"] for row in learned) > 0
    assert set(dropped[0]) == {"step", "task", "group", "member", "what", "error"}
    assert dropped[0]["error"] == "Lost: RuntimeError: the maze has caved in"
    assert "episodes failed" in output
    for row in learned:
        assert row["train/failed"] == row["env/failed_share"]
        assert row["env/failed_turns"] == (2.0 if row["env/failed_share"] else None)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--tasks.0.items", ""), "tasks.0.items is empty"),
        (("--tasks.0.items", "0-40"), "expected numbers below 25"),
        (("--tasks.0.held_out", "nowhere.json"), "nowhere.json"),
        (("--prompt.style", "compact"), "use chat or bare"),
        (("--prompt.stop_at_answer", "true"), "stop_at_answer"),
        (("--tasks.0.env", "FrozenLake", "--env.url", ""), "use compact or ragen"),
        (("--env.progress", "0.5"), "maze does not report progress"),
        (("--imitation.noise", "0.3"), "for imitation.plans optimal"),
        (("--imitation.noise", "0.3", "--imitation.plans", "optimal"), "no oracle for every state"),
        (("--env.url", "ftp://x"), "no address of a service"),
        (("--env.token_file", "nowhere", "--env.url", "http://127.0.0.1:9"), "nowhere"),
        (("--rollout.context_tokens", "50"), "context_tokens 50; expected at least"),
        (("--algo.dynamic_sampling", "2"), "dynamic_sampling"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(file, tmp_path, words, told):
    code, _, error = train(file, tmp_path / "run", *words)
    assert code == 2
    assert told in error
    assert not servers()


def test_a_run_on_a_service_can_be_evaluated_and_exported(calm, tmp_path):
    folder, _ = calm
    code, output, error = tiny_run.command("eval", str(folder), "--episodes", "3", "--json")
    assert code == 0, error
    found = json.loads(output)
    assert found["episodes"] == found["success"]["n"] == found["random"]["n"] == found["null"]["n"] == 3
    assert found["outcomes"]["null"] == [0.0] * 3
    assert "null play" in tiny_run.command("eval", str(folder), "--episodes", "3")[1]
    summary = json.loads((folder / "summary.json").read_text())
    code, output, error = tiny_run.command("eval", str(folder), "--json")
    assert json.loads(output)["success"] == summary["success"]["trained"]
    code, _, error = tiny_run.command("eval", str(folder), "--env", "FrozenLake")
    assert code == 2
    assert "has items of maze only" in error
    code, _, error = tiny_run.command("export", str(folder), str(tmp_path / "out"))
    assert code == 0, error
    assert not servers()
