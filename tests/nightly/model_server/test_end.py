"""The endpoint as a process: its end by a signal, while responses are sampled and others wait, or by its parent."""

import json
import signal
import subprocess
import sys
import threading
import time

import httpx
import made_run
import pytest

SERVER = """
import json
import sys
import time

from agentrl_jax.model_server import app
from agentrl_jax.model_server.served_model import make_sampler
from agentrl_jax.model_server.served_model import load_served
from agentrl_jax.services.server import run
from agentrl_jax.services.server.limits import Limits

run.GRACE_SECONDS, app.CLOSE_SECONDS = int(sys.argv[3]), 1.0
model = load_served(sys.argv[1])

class Slow:
    context = max_tokens = 64
    max_rows = 1

    def programs(self):
        return 0

    def __call__(self, requests):
        print(json.dumps("sampling"), flush=True)
        time.sleep(float(sys.argv[2]))
        return sampler(requests)

sampler = make_sampler(model, context=64, max_tokens=8, max_batch=1)
served = app.create_app(model, Slow(), Limits(), max_waiting=4)
run.serve(served, host="127.0.0.1", port=0, token="", connections=16, announce=True)
"""


def started(*words):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, *words], text=True, **pipes)


def ask(address, **options):
    body = {"messages": [{"role": "user", "content": "Up?"}], "max_tokens": 4}
    return httpx.post(f"{address}/v1/chat/completions", json=body, timeout=120, **options)


def test_the_command_serves_a_run_and_ends_with_its_parent(tmp_path):
    folder = made_run.write_run(tmp_path / "run")
    token = tmp_path / "token"
    token.write_text("secret")
    options = ("--port", "0", "--announce", "--token_file", str(token))
    with started("-m", "agentrl_jax", "serve-model", str(folder), *options) as process:
        answer = ask(json.loads(process.stdout.readline())["url"], headers={"Authorization": "Bearer secret"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"].startswith("<answer>")
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize(("seconds", "grace", "status"), [(0.5, 60, 200), (600, 1, 503)])
def test_a_signal_during_a_dispatch(tmp_path, seconds, grace, status):
    """What is sampled within the time that is left is answered; everything else is answered with 503."""
    model = str(made_run.write_model(tmp_path / "tiny"))
    answers = []
    with started("-c", SERVER, model, str(seconds), str(grace)) as process:
        address = json.loads(process.stdout.readline())["url"]
        threads = [threading.Thread(target=lambda: answers.append(ask(address))) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert json.loads(process.stdout.readline()) == "sampling"
        while "responses_waiting 1.0" not in httpx.get(f"{address}/metrics").text:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert process.wait(60) in (0, -signal.SIGTERM)
    assert len(answers) == 2
    for answer in answers:
        assert answer.status_code == status, answer.text
        if status == 503:
            assert answer.json()["error"]["message"] == "the server ends"
            assert answer.headers["Retry-After"] == "5"
