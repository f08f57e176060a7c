"""HTTP client of a service: AgentGym's fifteen environments, on its own servers (of either generation) or on ours."""

import contextlib
import dataclasses
import functools
import itertools
import logging
import queue
import random
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpcore
import httpx

from agentrl_jax.errors import MAX_FOREIGN, BadValue, shortened
from agentrl_jax.services.answers import (
    BadAnswer,
    read_handle,
    read_reset,
    read_screenshot,
    read_step,
    read_text,
    refusal,
)
from agentrl_jax.services.connection import DeadlineConnection
from agentrl_jax.services.environment import ItemError, StepResult
from agentrl_jax.services.protocol import Errors, RouteSpec
from agentrl_jax.strict_json import parse

_log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Longest answer that is read, in bytes."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts: the first pause, which doubles each time, and the longest."""

KEPT_SECONDS = 2.0
"""Seconds that a connection is kept without a request. uvicorn, which runs AgentGym's servers, closes it after 5 s; a
request that meets the closing would be lost."""

_BUSY = frozenset((429, 502, 503, 504))
"""Status codes of a server that may answer on a later attempt."""

_BROKEN = (httpx.InvalidURL, httpcore.NetworkError, httpcore.ProtocolError, UnicodeError)
"""A connection failed or broke; `UnicodeError` for a host that cannot be a name."""

Result = TypeVar("Result")


class ServiceError(Exception):
    """The service did not do what was asked; the one-line message says which service, what was asked and what came."""

    def __init__(self, text: str):
        """Shortens the text, which may quote the server and ends up in notes and files."""
        super().__init__(shortened(text, MAX_FOREIGN))


class Lost(ServiceError):
    """The instance is gone or may not be trusted: the server forgot it, restarted, or did not answer."""


class _Later(Lost):
    """A refusal that may change on a later attempt."""


class ServiceClient:
    """The connections to one server, for any number of instances. Thread-safe.

    A request that may safely be repeated (create, reset, observation) is retried with growing pauses until its time is
    up. A step is sent once: if there is no answer, nobody knows whether the step was carried out. Deadlines are in
    monotonic seconds; by default, a request may take `seconds`, retries included. What fails is a `ServiceError`.
    """

    def __init__(self, url: str, routes: RouteSpec, *, seconds: float = 60.0, connections: int = 64, token: str = ""):
        """Opens no connection yet, and never more than `connections` at once.

        `url` is the base address of the server, e.g. http://127.0.0.1:8000, with or without the prefix of the routes
        (`ValueError` if it is not an http address, or has a query or a fragment); `token` is a bearer token for all
        requests, empty for none.
        """
        base = url.rstrip("/")
        if not base.startswith(("http://", "https://")):
            raise BadValue(f"{url!r} is no address of a service; expected one such as http://127.0.0.1:8000", key=url)
        if "?" in base or "#" in base:
            raise BadValue(f"{url!r} has a query or a fragment; expected scheme, host, port and path only", key=url)
        self.url = base if not routes.prefix or base.endswith(routes.prefix) else base + routes.prefix
        self.routes, self.seconds = routes, seconds
        # Uncompressed bodies only: a compressed one can be far longer than the bytes counted.
        self._headers = {"Accept": "*/*", "Accept-Encoding": "identity", "User-Agent": "agentrl-jax"}
        self._headers |= {"Authorization": f"Bearer {token}"} if token else {}
        # One connection per pool: a pool shared by many threads costs more than the requests themselves. The machine's
        # proxy settings are ignored, as services are nearby.
        tls = ssl.create_default_context() if base.startswith("https://") else None
        self._connections: queue.LifoQueue[DeadlineConnection] = queue.LifoQueue()
        for _ in range(connections):
            self._connections.put(DeadlineConnection(keepalive=KEPT_SECONDS, tls=tls))

    @property
    def _root(self) -> str:
        return (self.url.removesuffix(self.routes.prefix) if self.routes.prefix else self.url) + "/"

    def close(self) -> None:
        """Closes the connections that are not in use."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._connections.get_nowait().close()

    def healthy(self, seconds: float = 5.0) -> bool:
        """Whether the server answers within some seconds."""
        try:
            with self._send("GET", self._root, None, time.monotonic() + seconds) as response:
                return response.status < 500
        except (httpcore.TimeoutException, *_BROKEN, Lost):
            return False

    def wait(self, seconds: float) -> None:
        """Waits until the server answers, whatever it answers; `ServiceError` if it does not within some seconds."""
        until, pause = time.monotonic() + seconds, FIRST_PAUSE
        for attempt in itertools.count():
            try:
                with self._send("GET", self._root, None, until):
                    return
            except (httpcore.TimeoutException, *_BROKEN, Lost) as error:
                reason = f"{type(error).__name__}: {error}"
            if time.monotonic() + pause >= until:
                raise ServiceError(
                    f"{self._root}: no answer within {seconds:g} s ({reason}), expected a running service; start it, "
                    "or correct the address"
                )
            if not attempt:
                _log.warning("%s: no answer (%s); waiting for it, at most %g s", self._root, reason, seconds)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def create(self, item: int = 0, *, deadline: float | None = None) -> int:
        """Opens an instance and returns its handle; some services need the item number already here."""
        fields = self.routes.create_body
        body = None if fields is None else {name: item for name, required in fields.items() if required}
        return self._repeat("POST", "create", body, functools.partial(read_handle, self.routes), deadline)

    def reset(self, handle: int, item: int, *, deadline: float | None = None) -> StepResult:
        """Starts an episode; the result has what the agent is shown first. `ItemError` if there is no such item."""
        routes = self.routes
        body = {routes.handle: handle, **routes.reset_body, routes.item_field: item}
        answer = self._repeat("POST", "reset", body, functools.partial(read_reset, routes, handle), deadline)
        if answer.observation == "TimeoutError" and routes.errors is Errors.TEXT:
            raise Lost(f"{self.url}: the environment could not be reset (TimeoutError)")
        if routes.fetches_observation:
            answer = dataclasses.replace(answer, observation=self.observation(handle, deadline=deadline))
        return routes.first_result(answer)

    def step(self, handle: int, action: str, *, deadline: float | None = None) -> StepResult:
        """Plays an action; after `Lost`, whether it was carried out is unknown, or the instance is gone."""
        body = {self.routes.handle: handle, "action": action}
        answer = self._once("POST", "step", body, functools.partial(read_step, self.routes), self._until(deadline))
        reward = answer.reward if answer.done or not self.routes.final_reward_only else 0.0
        return dataclasses.replace(
            answer, reward=reward, score=answer.score if self.routes.cumulative_score else reward
        )

    def observation(self, handle: int, *, deadline: float | None = None) -> str:
        """The last observation."""
        return self._repeat("GET", "observation", {self.routes.handle: handle}, read_text, deadline)

    def screenshot(self, handle: int, *, deadline: float | None = None) -> str:
        """A picture of the instance as a data URL, of a service that has `RouteSpec.screenshot`."""
        assert self.routes.screenshot is not None
        method, path = self.routes.screenshot
        return self._repeat(method, path, {self.routes.handle: handle}, read_screenshot, deadline)

    def shut(self, handle: int) -> None:
        """Closes an instance, if the server supports it; never raises."""
        with contextlib.suppress(ServiceError):
            until = time.monotonic() + min(self.seconds, 5.0)
            self._once("POST", "close", {self.routes.handle: handle}, lambda answer: None, until)

    def _until(self, deadline: float | None) -> float:
        return time.monotonic() + self.seconds if deadline is None else deadline

    def _repeat(
        self, method: str, path: str, body: Any, read: Callable[[Any], Result], deadline: float | None
    ) -> Result:
        until, pause, before = self._until(deadline), FIRST_PAUSE, None
        while True:
            try:
                return self._once(method, path, body, read, until)
            except _Later as error:
                before = error
                wait = pause * random.uniform(0.5, 1.0)  # so that clients do not all retry at once
                if time.monotonic() + wait >= until:
                    raise Lost(str(error)) from error
                time.sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE)
            except Lost as error:
                if before is None:
                    raise
                # The last attempt may have had no time to fail as the ones before it did.
                raise Lost(f"{error}; before that: {before}") from error

    def _once(self, method: str, path: str, body: Any, read: Callable[[Any], Result], until: float) -> Result:
        """What `read` finds in the answer to a request; a GET has its body in the query."""
        left = until - time.monotonic()
        where = f"{self.url}/{path}"
        if left <= 0:
            raise Lost(f"{where}: no time is left")
        try:
            with self._send(method, where, body, until) as response:
                content = _read_body(response)
        except httpcore.TimeoutException as error:
            raise Lost(f"{where}: no answer within {left:.1f} s ({type(error).__name__})") from error
        except _BROKEN as error:
            raise _Later(f"{where}: {type(error).__name__}: {error}") from error
        try:
            return read(self._parsed(where, response.status, content))
        except BadAnswer as error:
            raise Lost(f"{where}: {error}") from error

    @contextlib.contextmanager
    def _send(self, method: str, where: str, body: Any, until: float) -> Iterator[httpcore.Response]:
        seconds = until - time.monotonic()
        content: dict[str, Any] = {"params": body} if method == "GET" else {"json": body} if body is not None else {}
        request = httpx.Request(method, where, headers=self._headers, **content)
        if request.url.userinfo:
            request = next(httpx.BasicAuth(request.url.username, request.url.password).auth_flow(request))
        try:
            connection = self._connections.get(timeout=max(seconds, 0.0))
        except queue.Empty:
            raise Lost(f"{self.url}: no connection was free within {seconds:.1f} s") from None
        try:
            with connection.stream(request, until) as response:
                yield response
        finally:
            self._connections.put(connection)

    def _parsed(self, where: str, status: int, content: bytes | None) -> Any:
        """The JSON of an answer with status 200 that is no refusal."""
        if content is None:
            raise Lost(f"{where}: the answer is longer than {MAX_ANSWER_BYTES} bytes")
        shown = shortened(content[:800].decode("utf-8", "replace"), 200)
        if status in _BUSY:
            raise _Later(f"{where}: status {status}: {shown}")
        if status == 422 and self.routes.errors is Errors.STATUS and where.endswith("/reset"):
            raise ItemError(f"{where}: {shown}")
        if status >= 400:
            raise (Lost if status in (404, 500) else ServiceError)(f"{where}: status {status}: {shown}")
        if status != 200:  # a redirect or a proxy's page: regardless of its body, not an environment's answer
            raise Lost(f"{where}: status {status}, expected 200: {shown}")
        try:
            answer = parse(content, where, advice="")
        except ValueError as error:
            raise Lost(f"{error!s}: {shown}") from error
        if (reason := refusal(answer)) is not None:
            raise Lost(f"{where}: {reason}")
        return answer


def _read_body(response: httpcore.Response) -> bytes | None:
    """The body of an answer; None if it is too long."""
    content = bytearray()
    for part in response.iter_stream():
        content += part
        if len(content) > MAX_ANSWER_BYTES:
            return None
    return bytes(content)
