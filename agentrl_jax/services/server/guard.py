"""What stands before every request: its size, the token, and a line of log and metrics behind it."""

import hmac
import logging
import time

import anyio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_log = logging.getLogger("agentrl_jax.services.requests")


class Counters:
    """What Prometheus is told."""

    def __init__(self) -> None:
        """Starts a registry of their own."""
        self.registry = CollectorRegistry()
        self.requests = Counter("requests", "Requests by route and status", ("route", "status"), registry=self.registry)
        self.seconds = Histogram("request_seconds", "Time of a request", ("route",), registry=self.registry)
        self.instances = Gauge("instances", "Instances that are open", registry=self.registry)
        self.expired = Counter("instances_expired", "Instances closed for idleness", registry=self.registry)
        self.abandoned = Counter("instances_abandoned", "Instances that did not answer in time", registry=self.registry)
        self.episodes = Counter("episodes", "Episodes that came to their end", ("solved",), registry=self.registry)


class Guard:
    """ASGI middleware: refuses what is too large or has no token, counts, and logs one line a request."""

    def __init__(self, app: ASGIApp, *, counters: Counters, max_bytes: int, seconds: float, token: str):
        """Stands before an application.

        Args:
            app: the application.
            counters: told of every request.
            max_bytes: largest body.
            seconds: that a body may take to arrive.
            token: that requests have to bear; empty for none. The health route needs none.
        """
        self._app, self._counters, self._token = app, counters, token
        self._max_bytes, self._seconds = max_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._checked(scope, receive, sending)
        finally:
            seconds = time.monotonic() - began
            route = getattr(scope.get("route"), "path", "other")
            self._counters.requests.labels(route, str(status)).inc()
            self._counters.seconds.labels(route).observe(seconds)
            told = {"method": scope["method"], "path": scope["path"], "status": status, "seconds": round(seconds, 6)}
            _log.info("request", extra={"fields": told})

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        given = headers.get("authorization", "").encode("latin-1")
        if self._token and scope["path"] != "/" and not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            refusal = JSONResponse({"detail": "no or wrong token; send the header Authorization: Bearer TOKEN"}, 401)
            await refusal(scope, receive, send)
            return
        declared = headers.get("content-length", "0")
        body = None
        if not declared.isdigit() or int(declared[:20]) <= self._max_bytes:
            try:
                with anyio.fail_after(self._seconds):
                    body = await self._body(receive)
            except TimeoutError:
                await JSONResponse({"detail": "the body took too long"}, 408)(scope, receive, send)
                return
        if body is None:
            refusal = JSONResponse({"detail": f"the body is larger than the {self._max_bytes} bytes allowed"}, 413)
            await refusal(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receiving() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receiving, send)

    async def _body(self, receive: Receive) -> bytes | None:
        """The body of a request; None if it is too large."""
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                return None
            if not message.get("more_body", False):
                return body
