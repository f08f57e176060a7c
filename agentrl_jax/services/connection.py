"""One HTTP connection whose requests end by a deadline, even if the server sends slowly.

HTTP libraries limit the time of single socket reads, so a server that sends a byte a second keeps a request alive
forever. Here each read gets only the time left for the whole request.
"""

import ssl
import time
from collections.abc import Iterable, Iterator
from typing import Any

import httpcore
import httpx

UNTIL = "until"
"""Name of the request extension that holds the deadline, in monotonic seconds."""


class DeadlineTransport(httpx.BaseTransport):
    """A connection for one request at a time; it is kept for `kept` seconds without a request."""

    def __init__(self, *, kept: float, verify: ssl.SSLContext | None):
        """Opens no connection yet; `verify` is the TLS context for https."""
        self._backend = _Backend()
        self._pool = httpcore.ConnectionPool(
            ssl_context=verify,
            max_connections=1,
            max_keepalive_connections=1,
            keepalive_expiry=kept,
            network_backend=self._backend,
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request whose extensions hold `UNTIL`.

        Raises:
            httpcore.TimeoutException: the request's time is up.
            httpcore.NetworkError, httpcore.ProtocolError: the connection broke, or the answer is not HTTP.
        """
        self._backend.until = request.extensions[UNTIL]
        url = request.url
        assert isinstance(request.stream, httpx.SyncByteStream)
        answer = self._pool.handle_request(
            httpcore.Request(
                method=request.method,
                url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
                headers=request.headers.raw,
                content=request.stream,
                extensions=request.extensions,
            )
        )
        assert isinstance(answer.stream, Iterable)
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer.stream))

    def close(self) -> None:
        """Closes the connection."""
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, parts: Iterable[bytes]):
        self._parts = parts

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts

    def close(self) -> None:
        if hasattr(self._parts, "close"):
            self._parts.close()


class _Backend(httpcore.NetworkBackend):
    """Opens sockets that obey the deadline of the request in progress.

    Attributes:
        until: monotonic seconds.
    """

    def __init__(self) -> None:
        self._sockets = httpcore.SyncBackend()
        self.until = 0.0

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = self.left(httpcore.ConnectTimeout)
        return _Stream(self._sockets.connect_tcp(host, port, left, local_address, socket_options), self)

    def left(self, error: type[httpcore.TimeoutException]) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise error("its time is up")
        return left


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, backend: _Backend):
        self._stream, self._backend = stream, backend

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._backend.left(httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, self._backend.left(httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left = self._backend.left(httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left), self._backend)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
