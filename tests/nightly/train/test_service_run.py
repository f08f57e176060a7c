import contextlib
import json
import threading
import time

import psutil
import pytest
import tiny_run
from tiny_run import metrics as rows

from agentrl_jax.services.environments.maze.env import Maze


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
