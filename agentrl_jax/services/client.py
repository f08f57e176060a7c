"""HTTP client of a service: AgentGym's fifteen environments, on its own servers (of either generation) or on ours."""

import contextlib
import dataclasses
import queue
import random
import ssl
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import httpcore
import httpx

from agentrl_jax.errors import MAX_FOREIGN, shortened
from agentrl_jax.services.answers import BadAnswer, read_handle, read_reset, read_step, read_text, refusal
from agentrl_jax.services.connection import UNTIL, DeadlineTransport
from agentrl_jax.services.environment import ItemError, StepResult
from agentrl_jax.services.protocol import Errors, RouteSpec
from agentrl_jax.strict_json import parse

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Longest answer that is read, in bytes."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between two attempts: the first pause, which doubles each time, and the longest."""

KEPT_SECONDS = 2.0
"""Seconds that a connection is kept without a request. uvicorn, which runs AgentGym's servers, closes it after 5 s; a
request that meets the closing would be lost."""

_BUSY = frozenset((429, 502, 503, 504))
"""Status codes of a server that may answer on a later attempt."""


_BROKEN = (httpx.HTTPError, httpx.InvalidURL, httpcore.NetworkError, httpcore.ProtocolError)
"""A connection failed or broke. (Two libraries, since the transport below httpx is httpcore's.)"""

Found = TypeVar("Found")


class ServiceError(Exception):
    """The service did not do what was asked; the one-line message says which service, what was asked and what came."""

    def __init__(self, text: str):
        """Shortens the text, which may quote the server and ends up in notes and files."""
        super().__init__(shortened(text, MAX_FOREIGN))


class Lost(ServiceError):
    """The instance is gone or may not be trusted: the server forgot it, restarted, or did not answer."""


class ServiceClient:
    """The connections to one server, for any number of instances. Thread-safe.

    A request that may safely be repeated (create, reset, observation) is retried with growing pauses until its time is
    up. A step is sent once: if there is no answer, nobody knows whether the step was carried out.
    """

    def __init__(self, url: str, routes: RouteSpec, *, seconds: float = 60.0, connections: int = 64, token: str = ""):
        """Opens no connection yet.

        Args:
            url: base address of the server, e.g. http://127.0.0.1:8000, with or without the prefix of the routes.
            routes: the server's routes.
            seconds: time that a request may take, retries included.
            connections: most connections open at once.
            token: bearer token of all requests; empty for none.

        Raises:
            ValueError: `url` is not an http address.
        """
        base = url.rstrip("/")
        if not base.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is no address of a service; expected one such as http://127.0.0.1:8000")
        self.url = base if not routes.prefix or base.endswith(routes.prefix) else base + routes.prefix
        self.routes, self.seconds = routes, seconds
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Uncompressed bodies only: a compressed one can be far longer than the bytes counted.
        headers["Accept-Encoding"] = "identity"
        # One connection per client: a pool shared by many threads costs more than the requests themselves. The
        # machine's proxy settings are ignored, as services are nearby.
        verify = ssl.create_default_context() if base.startswith("https://") else None
        self._connections: queue.LifoQueue[httpx.Client] = queue.LifoQueue()
        for _ in range(connections):
            transport = DeadlineTransport(kept=KEPT_SECONDS, verify=verify)
            self._connections.put(httpx.Client(transport=transport, headers=headers, trust_env=False))

    def close(self) -> None:
        """Closes the connections that are not in use."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._connections.get_nowait().close()

    def healthy(self, seconds: float = 5.0) -> bool:
        """Whether the server answers within some seconds."""
        until = time.monotonic() + seconds
        base = self.url.removesuffix(self.routes.prefix) if self.routes.prefix else self.url
        try:
            with self._connection(seconds) as http, http.stream("GET", f"{base}/", extensions={UNTIL: until}) as told:
                return told.status_code < 500
        except (httpcore.TimeoutException, *_BROKEN, Lost):
            return False

    def create(self, item: int = 0, *, deadline: float | None = None) -> int:
        """Opens an instance and returns its handle.

        Args:
            item: item number, for services that need one when an instance is created.
            deadline: monotonic seconds after which it fails; default: `seconds` from now.

        Raises:
            ServiceError: the instance could not be opened.
        """
        wanted = self.routes.create
        body = None if wanted is None else {name: item for name, required in wanted.items() if required}
        return self._read(
            "create", lambda found: read_handle(self.routes, found), self._repeated("create", body, deadline)
        )

    def reset(self, handle: int, item: int, *, deadline: float | None = None) -> StepResult:
        """Starts an episode; the result's observation is what the agent is shown first.

        Raises:
            ItemError: there is no such item.
            ServiceError: the episode could not be started.
        """
        routes = self.routes
        body = {routes.handle: handle, **routes.reset, routes.item: item}
        found = self._repeated("reset", body, deadline)
        answer = self._read("reset", lambda found: read_reset(routes, handle, found), found)
        if answer.observation == "TimeoutError" and routes.errors is Errors.TEXT:
            raise Lost(f"{self.url}: the environment could not be reset (TimeoutError)")
        if routes.observes:
            answer = dataclasses.replace(answer, observation=self.observation(handle, deadline=deadline))
        return routes.first(answer)

    def step(self, handle: int, action: str, *, deadline: float | None = None) -> StepResult:
        """Plays an action.

        Raises:
            Lost: whether the action was carried out is unknown, or the instance is gone.
            ServiceError: the action was refused.
        """
        found = self._once("POST", "step", {self.routes.handle: handle, "action": action}, self._until(deadline))
        answer = self._read("step", lambda found: read_step(self.routes, found), found)
        reward = answer.reward if answer.done or not self.routes.final else 0.0
        return dataclasses.replace(answer, reward=reward, score=answer.score if self.routes.cumulative else reward)

    def observation(self, handle: int, *, deadline: float | None = None) -> str:
        """The last observation."""
        return self._read(
            "observation",
            read_text,
            self._repeated("observation", {self.routes.handle: handle}, deadline, method="GET"),
        )

    def shut(self, handle: int) -> None:
        """Closes an instance, if the server supports it; never raises."""
        with contextlib.suppress(ServiceError):
            self._once("POST", "close", {self.routes.handle: handle}, time.monotonic() + min(self.seconds, 5.0))

    def _until(self, deadline: float | None) -> float:
        return time.monotonic() + self.seconds if deadline is None else deadline

    def _repeated(self, path: str, body: Any, deadline: float | None, *, method: str = "POST") -> Any:
        until, pause = self._until(deadline), FIRST_PAUSE
        while True:
            try:
                return self._once(method, path, body, until)
            except _Later as error:
                wait = pause * random.uniform(0.5, 1.0)  # so that clients do not all retry at once
                if time.monotonic() + wait >= until:
                    raise Lost(str(error)) from error
                time.sleep(wait)
                pause = min(2 * pause, LONGEST_PAUSE)

    def _once(self, method: str, path: str, body: Any, until: float) -> Any:
        left = until - time.monotonic()
        where = f"{self.url}/{path}"
        if left <= 0:
            raise Lost(f"{where}: no time is left")
        sent: dict[str, Any] = {"params": body} if method == "GET" else {"json": body} if body is not None else {}
        try:
            with (
                self._connection(left) as http,
                http.stream(method, where, extensions={UNTIL: until}, **sent) as response,
            ):
                content = _read(response)
        except httpcore.TimeoutException as error:
            raise Lost(f"{where}: no answer within {left:.1f} s ({type(error).__name__})") from error
        except _BROKEN as error:
            raise _Later(f"{where}: {type(error).__name__}: {error}") from error
        return self._understood(where, response, content)

    @contextlib.contextmanager
    def _connection(self, seconds: float) -> Iterator[httpx.Client]:
        try:
            http = self._connections.get(timeout=seconds)
        except queue.Empty:
            raise Lost(f"{self.url}: no connection was free within {seconds:.1f} s") from None
        try:
            yield http
        finally:
            self._connections.put(http)

    def _understood(self, where: str, response: httpx.Response, content: bytes | None) -> Any:
        status = response.status_code
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
            found = parse(content, where)
        except ValueError as error:
            raise Lost(f"{error!s}: {shown}") from error
        if (words := refusal(found)) is not None:
            raise Lost(f"{where}: {words}")
        return found

    def _read(self, path: str, read: Callable[[Any], Found], found: Any) -> Found:
        try:
            return read(found)
        except BadAnswer as error:
            raise Lost(f"{self.url}/{path}: {error}") from error


def _read(response: httpx.Response) -> bytes | None:
    """The body of an answer; None if it is too long."""
    content = bytearray()
    for part in response.iter_raw():
        content += part
        if len(content) > MAX_ANSWER_BYTES:
            return None
    return bytes(content)


class _Later(Lost):
    """A refusal that may change on a later attempt."""
