"""Checks each request before the application sees it: origin, token and body. Logs it and counts it afterwards."""

import hmac
import logging
import time

import anyio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl_jax.services.server.limits import Limits
from agentrl_jax.services.server.requests import refuse_body, refuse_head
from agentrl_jax.services.texts import cut

_log = logging.getLogger("agentrl_jax.services.requests")


class Counters:
    """Metrics for Prometheus."""

    def __init__(self) -> None:
        """Creates a separate registry."""
        self.registry = CollectorRegistry()
        self.requests = Counter("requests", "Requests by route and status", ("route", "status"), registry=self.registry)
        self.seconds = Histogram("request_seconds", "Time of a request", ("route",), registry=self.registry)
        self.instances = Gauge("instances", "Instances that are open", registry=self.registry)
        self.expired = Counter("instances_expired", "Instances closed for idleness", registry=self.registry)
        self.reclaimed = Counter("instances_reclaimed", "Instances closed for new ones", registry=self.registry)
        self.hung = Gauge("instances_hung", "Instances given up whose request still runs", registry=self.registry)
        self.abandoned = Counter("instances_abandoned", "Instances that did not answer in time", registry=self.registry)
        self.episodes = Counter("episodes", "Episodes that came to their end", ("solved",), registry=self.registry)


class Guard:
    """ASGI middleware: refuses forbidden or invalid requests, counts all, and logs one line per request."""

    def __init__(self, app: ASGIApp, *, counters: Counters, limits: Limits):
        """Wraps an application.

        Args:
            app: the application.
            counters: updated by every request.
            limits: the server's limits. The health route needs no token.
        """
        self._app, self._counters, self._limits = app, counters, limits

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
            told = {"method": scope["method"], "path": cut(scope["path"], 200), "status": status}
            _log.info("request", extra={"fields": {**told, "seconds": round(seconds, 6)}})

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = body = None
        headers, limits = Headers(scope=scope), self._limits
        given = headers.get("authorization", "").encode("latin-1")
        declared = headers.get("content-length", "0")
        if (refusal := refuse_head(headers, scope["scheme"], limits)) is not None:
            pass
        elif (
            limits.token and scope["path"] != "/" and not hmac.compare_digest(given, f"Bearer {limits.token}".encode())
        ):
            refusal = 401, "no or wrong token; send the header Authorization: Bearer TOKEN"
        elif declared.isascii() and declared.isdigit() and int(declared[:20]) > limits.body_bytes:
            refusal = self._too_large()
        else:
            try:
                with anyio.fail_after(limits.arrival_seconds):
                    body = await self._body(receive)
                refusal = self._too_large() if body is None else refuse_body(headers, body)
            except TimeoutError:
                refusal = 408, "the body took too long"
        if refusal is not None:
            await JSONResponse({"detail": refusal[1]}, refusal[0])(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": body or b"", "more_body": False}]

        async def receiving() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, receiving, send)

    def _too_large(self) -> tuple[int, str]:
        return 413, f"the body is larger than the {self._limits.body_bytes} bytes allowed"

    async def _body(self, receive: Receive) -> bytes | None:
        """The body of a request; None if it is too large."""
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self._limits.body_bytes:
                return None
            if not message.get("more_body", False):
                return body
