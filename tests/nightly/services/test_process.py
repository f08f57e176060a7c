"""A service in a separate process: it is restarted when it dies, and ends when its parent does."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from agentrl_jax.services.client import ServiceClient, ServiceError
from agentrl_jax.services.process import ServiceProcess
from agentrl_jax.services.protocol import ROUTES

PARENT = """
import sys, time
from pathlib import Path
from agentrl_jax.services.process import ServiceProcess
server = ServiceProcess("maze", Path(sys.argv[1]), max_instances=2)
server.url()
print(server._process.pid, flush=True)
time.sleep(600)
"""


def pid(server):
    """Id of a server's process, while there is one."""
    process = server._process
    return None if process is None or process.poll() is not None else process.pid


def eventually(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_killed_server_comes_back_at_the_same_address_and_ends_when_closed(tmp_path):
    server = ServiceProcess("maze", tmp_path / "log", max_instances=2)
    assert pid(server) is None
    client = ServiceClient(server.url(), ROUTES["maze"], seconds=60, token=server.token)
    assert client.reset(client.create(), 18).observation.startswith("The goal is at position 8, 6.")
    first, address = pid(server), server.url()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: pid(server) not in (None, first))
    assert server.url() == address
    assert client.reset(client.create(), 18).observation.startswith("The goal is at position 8, 6.")
    second = pid(server)
    server.close()
    assert pid(server) is None
    assert not psutil.pid_exists(second)
    assert '"message": "request"' in (tmp_path / "log").read_text()


def test_nobody_without_the_token_is_answered_and_it_can_be_read_nowhere(tmp_path):
    server = ServiceProcess("maze", tmp_path / "log", max_instances=2)
    url = server.url()
    mine = ServiceClient(url, ROUTES["maze"], seconds=60, token=server.token)
    handle = mine.create()
    mine.reset(handle, 3)
    for token in ("", "guess"):
        other = ServiceClient(url, ROUTES["maze"], seconds=60, token=token)
        for ask in (other.create, lambda: other.reset(handle, 4), lambda: other.step(handle, "move left")):  # noqa: B023
            with pytest.raises(ServiceError, match="status 401"):
                ask()
    assert mine.observation(handle).startswith(
        "The goal is at position 8, 6. Your current position is at position 1, 4."
    )
    process = psutil.Process(pid(server))
    told = [*process.cmdline(), *process.environ().values(), (tmp_path / "log").read_text()]
    assert len(server.token) >= 32
    assert not any(server.token in text for text in told)
    assert server.token != ServiceProcess("maze", tmp_path / "log", max_instances=2).token
    server.close()


def test_a_server_that_hangs_is_killed_and_comes_back(tmp_path, caplog):
    server = ServiceProcess("maze", tmp_path / "log", max_instances=2, answer_seconds=4.0)
    client = ServiceClient(server.url(), ROUTES["maze"], seconds=60, token=server.token)
    client.create()
    first = pid(server)
    os.kill(first, signal.SIGSTOP)
    eventually(lambda: pid(server) not in (None, first))
    assert client.reset(client.create(deadline=time.monotonic() + 60), 18).observation.startswith("The goal is at")
    assert not psutil.pid_exists(first)
    assert server.restarts == 1
    assert "did not answer within 4 s" in caplog.text
    server.close()


def test_a_server_ends_when_its_parent_is_killed(tmp_path):
    words = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        started = int(parent.stdout.readline())
        assert psutil.pid_exists(started)
        parent.kill()
    eventually(lambda: not psutil.pid_exists(started) or psutil.Process(started).status() == psutil.STATUS_ZOMBIE)


def test_a_server_that_does_not_start_says_why(tmp_path):
    server = ServiceProcess("mace", tmp_path / "log", max_instances=2)
    with pytest.raises(ServiceError, match="did you mean maze"):
        server.url()
    server.close()
