"""A service in a separate process: it is restarted when it dies, and ends when its parent does."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from counting import wait_until

from agentrl_jax.services.client import ServiceClient, ServiceError
from agentrl_jax.services.process import ServiceProcess
from agentrl_jax.services.protocol import routes_of

PARENT = """
import sys, time
from pathlib import Path
from agentrl_jax.services.process import ServiceProcess
server = ServiceProcess("maze", Path(sys.argv[1]), max_instances=2)
server.url()
print(server._process.pid, flush=True)
time.sleep(600)
"""


def started(folder, **options):
    """A server, and a client of it."""
    server = ServiceProcess("maze", folder / "log", max_instances=2, **options)
    assert pid(server) is None
    return server, ServiceClient(server.url(), routes_of("maze"), seconds=60, token=server.token)


def check_play(client):
    handle = client.create(deadline=time.monotonic() + 60)
    assert client.reset(handle, 18).observation.startswith("The goal is at position 8, 6.")


def pid(server):
    process = server._process
    return None if process is None or process.poll() is not None else process.pid


def test_nobody_without_the_token_is_answered_and_it_can_be_read_nowhere(tmp_path):
    server, mine = started(tmp_path)
    mine.create()
    for token in ("", "guess"):
        with pytest.raises(ServiceError, match="status 401"):
            ServiceClient(server.url(), routes_of("maze"), seconds=60, token=token).create()
    process = psutil.Process(pid(server))
    told = [*process.cmdline(), *process.environ().values(), (tmp_path / "log").read_text()]
    assert len(server.token) >= 32
    assert not any(server.token in text for text in told)
    assert server.token != ServiceProcess("maze", tmp_path / "log", max_instances=2).token
    server.close()


def test_a_server_that_hangs_is_killed_comes_back_at_the_same_address_and_ends_when_closed(tmp_path, caplog):
    server, client = started(tmp_path, answer_seconds=4.0)
    client.create()
    first, address = pid(server), server.url()
    os.kill(first, signal.SIGSTOP)
    wait_until(lambda: pid(server) not in (None, first), 60)
    check_play(client)
    assert server.url() == address
    assert not psutil.pid_exists(first)
    assert server.restarts == 1
    assert "did not answer within 4 s" in caplog.text
    second = pid(server)
    server.close()
    assert pid(server) is None
    assert not psutil.pid_exists(second)
    assert '"message": "request"' in (tmp_path / "log").read_text()


def test_a_server_ends_when_its_parent_is_killed(tmp_path):
    words = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as parent:
        child = int(parent.stdout.readline())
        assert psutil.pid_exists(child)
        parent.kill()
    wait_until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE, 60)


def test_a_server_that_does_not_start_says_why(tmp_path):
    server = ServiceProcess("mace", tmp_path / "log", max_instances=2)
    with pytest.raises(ServiceError, match="did you mean maze"):
        server.url()
    server.close()
