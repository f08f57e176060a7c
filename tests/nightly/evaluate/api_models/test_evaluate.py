"""Evaluations of an API model: a process that is killed, and a panel that is played on another server."""

import dataclasses
import json
import signal
import subprocess
import sys
import threading

import tiny_run
from fake_api import FakeApi
from maze_model import lines_in, replies_in, walk
from serving import running

from agentrl_jax.services.environments.maze import SERVICE, STARTS, Maze
from agentrl_jax.services.protocol import ROUTES
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits


def test_a_kill_in_the_middle(tmp_path):
    """The process is killed while it waits for answers; the next one asks nothing that was answered, and torn last
    lines of both files do no harm."""
    enough, held = threading.Event(), threading.Event()

    def answer(body):
        with api.lock:
            late = sum(api.asked.values()) >= 12
        if late and not held.is_set():
            enough.set()
            held.wait(30)
        return walk(body)

    api = FakeApi(answer)
    words = ["eval", "--api", "m", "--env", "maze", "--items", "0-7", "--concurrency", "2", "--out", str(tmp_path)]
    with api.running() as url:
        words += ["--base_url", url, "--json"]
        with subprocess.Popen([sys.executable, "-m", "agentrl_jax", *words], stderr=subprocess.DEVNULL) as process:
            assert enough.wait(120)
            process.send_signal(signal.SIGKILL)
        before = replies_in(tmp_path)
        assert 10 <= len(before) <= 12
        for name in ("replies.jsonl", "episodes.jsonl"):
            with open(tmp_path / name, "ab") as file:
                file.write(b'{"item": 7, "sam')
        held.set()
        asked = len(api.requests)
        code, out, err = tiny_run.command(*words)
        assert code == 0, err
    result = json.loads(out)
    assert result["episodes"] == {"asked": 8, "answered": 8, "length": 0, "refusal": 0, "failed": 0, "unfinished": 0}
    assert result["success_all"]["mean"] == 1
    after = replies_in(tmp_path)
    assert {key: after[key] for key in before} == before
    assert len(api.requests) - asked == len(after) - len(before) == result["requests"]


def test_a_server_with_other_items_than_the_panels(tmp_path):
    class Other(Maze):
        def reset(self, item):
            return super().reset((item + 1) % len(STARTS))

    served = dataclasses.replace(SERVICE, make=lambda upstream: Other())
    with running(create_app(served, ROUTES["maze"], Limits())) as server, FakeApi(walk).running() as url:
        words = ("--base_url", url, "--out", str(tmp_path), "--panel", "maze-v1", "--url", server, "--json")
        code, out, err = tiny_run.command("eval", "--api", "m", *words)
    assert (code, out) == (2, "")
    assert f"--panel is maze-v1, but item 0 begins with another text on the server at {server}" in err
    assert not (tmp_path / "record.json").exists()
    assert len(lines_in(tmp_path, "episodes")) == 25
