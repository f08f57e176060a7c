"""Idle and slow connections, over real sockets."""

import contextlib
import socket
import time

import httpx
import pytest
from counting import counting
from serving import HTTP, running

from agentrl_jax.services.protocol import COMPILED
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.connections import bounded_protocol
from agentrl_jax.services.server.limits import Limits

MOST = 20


@pytest.fixture
def address():
    app = create_app(counting()[0], COMPILED, Limits(arrival_seconds=0.2))
    with running(app, http=bounded_protocol(MOST, head_seconds=0.2), timeout_keep_alive=60) as url:
        yield url


@contextlib.contextmanager
def sockets(url, count, sent=b""):
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", httpx.URL(url).port)
        made = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(count)]
        for each in made:
            each.sendall(sent)
        yield made


def ended(connection):
    """Whether the server closes a connection within ten seconds; data that it sends first is ignored."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1000):
            pass
    return True


@pytest.mark.parametrize(
    "sent", [b"", b"POST /create HTTP/1.1\r\nHost: 127.0", b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET"]
)
def test_a_head_that_does_not_come_ends_the_connection(address, sent):
    with sockets(address, 1, sent) as (connection,):
        assert ended(connection)


def test_a_slow_body_ends_in_408(address):
    head = b"POST /step HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{"
    with sockets(address, 1, head) as (connection,):
        assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_idle_connections_do_not_shut_out_clients():
    app = create_app(counting()[0], COMPILED)
    with running(app, http=bounded_protocol(MOST, head_seconds=60)) as url, sockets(url, 3 * MOST) as idle:
        assert HTTP.post(f"{url}/create").json() == {"id": 0}
        assert all(ended(each) for each in idle[: 2 * MOST])


def test_connections_at_work_are_not_closed_for_new_ones():
    with running(create_app(counting()[0], COMPILED), http=bounded_protocol(2, head_seconds=60)) as url:
        for handle in (0, 1):
            HTTP.post(f"{url}/create")
            HTTP.post(f"{url}/reset", json={"id": handle, "data_idx": 0})
        head = b"POST /step HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        bodies = [b'{"id": %d, "action": "sleep 0.6"}' % handle for handle in (0, 1)]
        with sockets(url, 2) as working:
            for connection, body in zip(working, bodies):
                connection.sendall(head % len(body) + body)
            time.sleep(0.2)
            with pytest.raises(httpx.TransportError):
                HTTP.get(url)
            assert all(each.recv(1000).startswith(b"HTTP/1.1 200 ") for each in working)
