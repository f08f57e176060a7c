"""Serves the page of a run or evaluation that goes on, to browsers on this machine only."""

import http
import http.server
import threading
from collections.abc import Sequence

from agentrl_jax.errors import UserError
from agentrl_jax.viewer.export import LiveData, page

HOST = "127.0.0.1"

_CHUNK = 2**16
"""Bytes that are sent at once."""


class PageServer(http.server.ThreadingHTTPServer):
    """Serves `/`, the page with the newest records, and `/version`, a text that changes with the records.

    Requests whose Host header is not this address are refused: a foreign site could otherwise read the page under a
    name of its domain that leads to this machine.
    """

    daemon_threads = True

    def __init__(self, runs: Sequence[LiveData], port: int = 0):
        """Binds the loopback address; port 0 takes a free one.

        Raises:
            UserError: the port cannot be used.
        """
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise UserError.of(
                "--port", port, f"which cannot be used ({error.strerror}); give another one, or 0"
            ) from error
        self._runs, self._lock = runs, threading.Lock()
        self._known: tuple[str, str] = ("", "")

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/"

    def version(self) -> str:
        """Changes when one of the runs has new records."""
        return " ".join(run.stamp() for run in self._runs)

    def html(self) -> str:
        """The page; it is made again when there are new records."""
        with self._lock:
            version = self.version()
            if self._known[0] != version:
                self._known = version, page(self._runs, live=version)
            return self._known[1]


class _Handler(http.server.BaseHTTPRequestHandler):
    server: PageServer
    timeout = 10
    """Seconds that a connection may be silent, and in which a client must take a chunk."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}:
            self._send(http.HTTPStatus.MISDIRECTED_REQUEST, "text/plain", "this server answers to its own address only")
            return
        makers = {"/": ("text/html", self.server.html), "/version": ("text/plain", self.server.version)}
        kind, make = makers.get(self.path, ("", None))
        if make is None:
            self._send(http.HTTPStatus.NOT_FOUND, "text/plain", "no such page; expected / or /version")
            return
        try:
            text = make()
        except UserError as error:
            self._send(http.HTTPStatus.SERVICE_UNAVAILABLE, "text/plain", str(error))
            return
        self._send(http.HTTPStatus.OK, kind, text)

    def _send(self, status: http.HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            # The timeout holds for a whole write, which a slow client that reads on may exceed.
            for start in range(0, len(body), _CHUNK):
                self.wfile.write(body[start : start + _CHUNK])

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""
