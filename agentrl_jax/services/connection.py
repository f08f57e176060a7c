"""One HTTP connection whose requests end by a deadline, even if the server sends slowly.

HTTP libraries limit the time of single socket reads, so a server that sends a byte a second keeps a request alive
forever. Here each read gets only the time left for the whole request.
"""

import contextlib
import ssl
import time
from collections.abc import Iterator
from typing import Any

import httpcore
import httpx


class DeadlineConnection:
    """A connection for one request at a time, kept for `keepalive` seconds without one; `tls` is needed for https."""

    def __init__(self, *, keepalive: float, tls: ssl.SSLContext | None):
        self._backend = _Backend()
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls,
            max_connections=1,
            max_keepalive_connections=1,
            keepalive_expiry=keepalive,
            network_backend=self._backend,
        )

    @contextlib.contextmanager
    def stream(self, request: httpx.Request, deadline: float) -> Iterator[httpcore.Response]:
        """Sends a request; inside the block, the body of the response can be read until `deadline`, monotonic seconds.

        Raises `httpcore.TimeoutException` if time is up, and `httpcore.NetworkError` or `httpcore.ProtocolError` if the
        connection broke or the answer is not HTTP.
        """
        self._backend.deadline = deadline
        url = request.url
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)
        content = request.read() or None
        with self._pool.stream(request.method, target, headers=request.headers.raw, content=content) as response:
            yield response

    def close(self) -> None:
        """Closes the connection."""
        self._pool.close()


class _Backend(httpcore.SyncBackend):
    """Opens sockets that obey the deadline of the current request."""

    deadline = 0.0

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, *args: Any, **options: Any) -> "_Stream":
        left = self.time_left(httpcore.ConnectTimeout)
        return _Stream(super().connect_tcp(host, port, left, *args, **options), self)

    def time_left(self, error: type[httpcore.TimeoutException]) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise error("its time is up")
        return left


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, backend: _Backend):
        self._stream, self._backend = stream, backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._backend.time_left(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._backend.time_left(httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> "_Stream":
        left = self._backend.time_left(httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left), self._backend)
