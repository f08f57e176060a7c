"""Servers for tests: real ones, in threads of this process, on free ports."""

import contextlib
import socket
import threading
import time

import httpx
import pytest
import uvicorn

from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits

HTTP = httpx.Client(timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
"""One client for all tests: to make one, which `httpx.post` does each time, takes tens of milliseconds."""


@contextlib.contextmanager
def running(app, port=0, grace=2, **options):
    """Serves an application inside the block and yields its address; `options` are uvicorn's.

    At the end, what is still asked has `grace` seconds.
    """
    listener = socket.create_server(("127.0.0.1", port))
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=grace, **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    end = time.monotonic() + 20
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < end
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


@pytest.fixture
def serve():
    """Function (service, wire, limits, upstream) -> address of a server that runs for the duration of the test."""
    with contextlib.ExitStack() as stack:

        def start(service, routes, limits=None, upstream=False):
            return stack.enter_context(running(create_app(service, routes, limits or Limits(), upstream=upstream)))

        yield start
