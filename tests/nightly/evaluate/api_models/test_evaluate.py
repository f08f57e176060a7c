"""An evaluation of an API model whose process is killed."""

import json
import signal
import subprocess
import sys
import threading

import tiny_run
from fake_api import FakeApi
from maze_model import replies_in, walk


def test_a_kill_in_the_middle(tmp_path):
    """While the process waits for answers; the next one asks nothing that was answered."""
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
        held.set()
        asked = len(api.requests)
        result = json.loads(tiny_run.done(*words))
    assert (result["episodes"]["answered"], result["success_all"]["mean"]) == (8, 1)
    after = replies_in(tmp_path)
    assert {key: after[key] for key in before} == before
    assert len(api.requests) - asked == len(after) - len(before) == result["requests"]
