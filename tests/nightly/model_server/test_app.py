"""Slow checks of what the quick tests of the same name check."""

import json
import subprocess
import sys

import httpx
import made_run
import pytest
from serving import running

from agentrl_jax.model_server.app import create_app
from agentrl_jax.model_server.run import make_sampler
from agentrl_jax.model_server.served_model import load_served
from agentrl_jax.services.server.limits import Limits

ASKED = [{"role": "user", "content": "Up?"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A pretrained model with a chat template."""
    return load_served(str(made_run.write_model(tmp_path_factory.mktemp("models") / "tiny")))


@pytest.fixture(scope="module")
def sampler(model):
    return make_sampler(model, context=1000, max_tokens=16, max_batch=4)


@pytest.fixture(scope="module")
def address(model, sampler):
    with running(create_app(model, sampler, Limits(body_bytes=4000), max_waiting=8)) as url:
        yield url


def test_the_command_serves_a_run_and_ends_with_its_parent(tmp_path):
    shape = "layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16"
    folder = made_run.write_run(tmp_path / "run", shape)
    (tmp_path / "token").write_text("secret")
    words = [sys.executable, "-m", "agentrl_jax", "serve-model", str(folder), "--port", "0", "--announce"]
    with subprocess.Popen(
        [*words, "--token_file", str(tmp_path / "token")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        address = json.loads(process.stdout.readline())["url"]
        body = {"messages": ASKED, "temperature": 0, "max_tokens": 4}
        headers = {"Authorization": "Bearer secret"}
        answer = httpx.post(f"{address}/v1/chat/completions", json=body, timeout=120, headers=headers)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"].startswith("<answer>")
        process.stdin.close()
        assert process.wait(60) == 0
