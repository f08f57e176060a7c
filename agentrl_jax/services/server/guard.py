"""Checks each request before the application sees it: host, origin, token and body. Logs and counts it."""

import hmac
import json
import logging
import time
from collections.abc import Callable

import anyio
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentrl_jax.services.server.access import parse_address
from agentrl_jax.services.server.limits import Limits
from agentrl_jax.services.texts import cut
from agentrl_jax.strict_json import parse

_log = logging.getLogger("agentrl_jax.services.requests")

Refusal = tuple[int, str]
"""Status and message."""


class RequestCounters:
    """Metrics of requests for Prometheus, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter("requests", "Requests by route and status", ("route", "status"), registry=self.registry)
        self.seconds = Histogram("request_seconds", "Time of a request", ("route",), registry=self.registry)


class Counters(RequestCounters):
    """Metrics of requests and of the instances of a service."""

    def __init__(self) -> None:
        super().__init__()
        self.instances = Gauge("instances", "Instances that are open", registry=self.registry)
        self.expired = Counter("instances_expired", "Instances closed for idleness", registry=self.registry)
        self.reclaimed = Counter("instances_reclaimed", "Instances closed for new ones", registry=self.registry)
        self.hung = Gauge("instances_hung", "Instances given up whose request still runs", registry=self.registry)
        self.abandoned = Counter("instances_abandoned", "Instances that did not answer in time", registry=self.registry)
        self.episodes = Counter("episodes", "Episodes that came to their end", ("solved",), registry=self.registry)


def _detail(status: int, message: str) -> Response:
    return JSONResponse({"detail": message}, status)


class Guard:
    """ASGI middleware: refuses forbidden or invalid requests, counts all, and logs one line per request."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        counters: RequestCounters,
        limits: Limits,
        refuse: Callable[[int, str], Response] = _detail,
    ):
        """`refuse` makes the response of a refused request from its status and message."""
        self._app, self._counters, self._limits, self._refuse = app, counters, limits, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._answer(scope, receive, send_noting_status)
        finally:
            seconds = time.monotonic() - began
            route = getattr(scope.get("route"), "path", "other")
            self._counters.requests.labels(route, str(status)).inc()
            self._counters.seconds.labels(route).observe(seconds)
            fields = {"method": scope["method"], "path": cut(scope["path"], 200), "status": status}
            _log.info("request", extra={"fields": {**fields, "seconds": round(seconds, 6)}})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        if (refusal := _refuse_head(scope, self._limits)) is None:
            try:
                with anyio.fail_after(self._limits.arrival_seconds):
                    body = await _read_body(receive, self._limits.body_bytes)
                refusal = _refuse_body(Headers(scope=scope), body, self._limits)
            except TimeoutError:
                refusal = 408, "the body took too long"
        if refusal is not None:
            await self._refuse(*refusal)(scope, receive, send)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_again() -> Message:
            return messages.pop() if messages else await receive()

        await self._app(scope, receive_again, send)


async def _read_body(receive: Receive, most: int) -> bytes:
    """The body of a request, cut off after more than `most` bytes."""
    body, more = b"", True
    while more and len(body) <= most:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


def _refuse_head(scope: Scope, limits: Limits) -> Refusal | None:
    """Refuses a request with a wrong Host or token, from a foreign web page, or with a length that is too large.

    A web page can make a browser send requests to this machine. Under a DNS name that the page controls (DNS
    rebinding), they have that name as Host; otherwise a browser adds the page's Origin to every POST. AgentGym's
    clients send no Origin. The health route needs no token.
    """
    headers = Headers(scope=scope)
    hosts = headers.getlist("host")
    if len(hosts) != 1 or not _is_allowed(hosts[0], limits):
        shown = cut(", ".join(hosts), 100) or "no name"
        return 400, f"the header Host gives {shown!r}, which is not served; start the server with --allowed_hosts NAME"
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"{scope['scheme']}://{hosts[0]}".lower():
        return 403, f"requests of web pages elsewhere are not served (Origin: {cut(origin, 100)})"
    token = headers.get("authorization", "").encode("latin-1")
    if limits.token and scope["path"] != "/" and not hmac.compare_digest(token, f"Bearer {limits.token}".encode()):
        return 401, "no or wrong token; send the header Authorization: Bearer TOKEN"
    length = headers.get("content-length", "0")
    if length.isascii() and length.isdigit() and int(length[:20]) > limits.body_bytes:
        return _too_large(limits)
    return None


def _refuse_body(headers: Headers, body: bytes, limits: Limits) -> Refusal | None:
    """Refuses a body that is too large or not strict JSON, before anything is played.

    Strict: declared as JSON, no repeated key, finite numbers, whole Unicode characters, integers that Python reads.
    """
    if len(body) > limits.body_bytes:
        return _too_large(limits)
    if not body:
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return 415, f"the body is declared as {cut(kind, 100) or 'nothing'}; send Content-Type: application/json"
    try:
        json.dumps(parse(body, "the body"), allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return 422, "the body holds half of a surrogate pair, which is no character"
    except (ValueError, RecursionError) as error:
        return 422, f"the body is no strict JSON: {cut(str(error.__cause__ or error), 200)}"
    return None


def _too_large(limits: Limits) -> Refusal:
    return 413, f"the body is larger than the {limits.body_bytes} bytes allowed"


def _is_allowed(host: str, limits: Limits) -> bool:
    """Whether a Host, with or without a port, is allowed."""
    name, colon, port = host.lower().rpartition(":")
    if not colon or host.endswith("]"):
        name, port = host.lower(), "0"
    if not (port.isascii() and port.isdigit()):
        return False
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    elif ":" in name:
        return False
    return name in limits.hosts or (limits.any_address and parse_address(name) is not None)
