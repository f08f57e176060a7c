"""The routes of a service, after AgentGym's protocol (`agentrl_jax.services.protocol`)."""

import contextlib
import functools
import json
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

import anyio
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from agentrl_jax.services.environment import ItemError, Service, StepResult
from agentrl_jax.services.protocol import Errors, RouteSpec
from agentrl_jax.services.server.guard import Counters, Guard
from agentrl_jax.services.server.instances import Instance, Instances, NoRoom, UnknownHandle
from agentrl_jax.services.server.limits import DEFAULTS, MOST_ITEM, Limits
from agentrl_jax.services.texts import cut

_log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""Seconds that instances have to finish when the server ends."""

SWEEP_SECONDS = 1.0
"""Seconds between two checks for idle instances."""


class _Refusal(Exception):
    """A request that cannot be met; the message is sent to the client."""

    def __init__(self, status: int, text: str):
        super().__init__(text)
        self.status = status


def create_app(service: Service, routes: RouteSpec, limits: Limits = DEFAULTS, *, upstream: bool = False) -> FastAPI:
    """The application of one service.

    Args:
        service: the environment.
        routes: its routes and field names.
        limits: the server's limits.
        upstream: reproduce the bugs of AgentGym's server: some play steps after the end of an episode, some have no
            /close, and those that `Service.make` describes.
    """
    host_episodes = _Handlers(service, routes, limits, upstream)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(host_episodes.sweep)
            yield
            tasks.cancel_scope.cancel()
        stuck = await anyio.to_thread.run_sync(host_episodes.instances.close_all, CLOSE_SECONDS)
        if stuck:
            _log.warning("%d instances are still at work and are left behind", stuck)

    app = FastAPI(title=f"agentrl_jax: {service.name}", lifespan=lifespan)
    app.add_middleware(Guard, counters=host_episodes.counters, limits=limits)
    app.add_exception_handler(RequestValidationError, _invalid)
    _add_routes(app, host_episodes)
    return app


class _Handlers:
    """Handles the requests of all routes."""

    def __init__(self, service: Service, routes: RouteSpec, limits: Limits, upstream: bool):
        self.service, self.routes, self.limits, self.upstream = service, routes, limits, upstream
        self.counters = Counters()
        self.instances = Instances(
            lambda: service.make(upstream),
            reclaimed=self.counters.reclaimed.inc,
            most=limits.instances,
            idle_timeout=limits.idle_timeout,
            reclaim_after=limits.reclaim_after,
            seconds=limits.seconds,
            first=limits.first_handle,
        )
        self.counters.instances.set_function(lambda: len(self.instances))
        self.counters.hung.set_function(lambda: self.instances.hung)
        self._threads: anyio.CapacityLimiter | None = None

    async def sweep(self) -> None:
        """Closes idle instances, forever."""
        while True:
            await anyio.sleep(SWEEP_SECONDS)
            self.counters.expired.inc(await anyio.to_thread.run_sync(self.instances.expire))

    # Work of each request; runs in threads.

    def create(self, late: threading.Event) -> Any:
        """Opens an instance, and closes it again if the client has stopped waiting."""
        handle = self.instances.create()
        try:
            answer = StepResult("")
            if self.routes.opens:
                with self.instances.use(handle) as instance:
                    instance.last = answer = instance.env.reset(handle - self.limits.first_handle)
            if late.is_set():
                raise TimeoutError
        except BaseException:
            self.instances.close(handle)
            raise
        return self.routes.fields(self.routes.created, handle, answer) if self.routes.created else handle

    def reset(self, handle: int, item: int) -> Any:
        """Starts an episode."""
        with self.instances.use(handle) as instance:
            instance.last = answer = instance.env.reset(item)
        if self.routes.reset_answer == "text":
            return answer.observation
        if self.routes.reset_answer == "pair":
            return [answer.observation, None]
        return self.routes.fields(self.routes.reset_fields, handle, answer)

    def step(self, handle: int, action: str, method: str = "step") -> Any:
        """Plays an action with the given method of the environment."""
        with self.instances.use(handle) as instance:
            last = self._episode(handle, instance)
            if last.done and not (self.upstream and self.routes.goes_on):
                raise _Refusal(409, f"The task with environment {handle} has finished.")
            instance.last = answer = getattr(instance.env, method)(action)
        if answer.done:
            self.counters.episodes.labels(str(self.service.solved(answer)).lower()).inc()
        return self.routes.fields(self.routes.plays.get(method, self.routes.step_fields), handle, answer)

    def observation(self, handle: int) -> Any:
        """The last observation."""
        with self.instances.use(handle) as instance:
            return self._episode(handle, instance).observation

    def detail(self, handle: int) -> Any:
        """The last answer with all its fields."""
        with self.instances.use(handle) as instance:
            return self.routes.fields((*self.routes.step_fields, "deleted"), handle, self._episode(handle, instance))

    def view(self, method: str, handle: int) -> Any:
        """Further data of the environment, from one of its methods."""
        with self.instances.use(handle) as instance:
            return getattr(instance.env, method)()

    def close(self, handle: int) -> Any:
        """Closes an instance."""
        closed = self.instances.close(handle)
        return {"closed": "closed"} if self.routes.errors is Errors.TEXT else closed

    @staticmethod
    def _episode(handle: int, instance: Instance) -> StepResult:
        if instance.last is None:
            raise _Refusal(409, f"The environment {handle} has no episode yet; reset it first.")
        return instance.last

    async def answer(
        self,
        handle: int | None,
        work: Callable[[], Any],
        *,
        resets: bool = False,
        late: threading.Event | None = None,
    ) -> Response:
        """The response to a request; errors in the form that this environment's clients expect.

        Args:
            handle: handle of the instance; None if the request concerns none.
            work: computes the answer, in a thread.
            resets: the request is a reset.
            late: set when the client has stopped waiting.
        """
        begun = threading.Event()

        def working() -> bytes:
            begun.set()
            return self._encoded(work(), handle)

        if self._threads is None:
            self._threads = anyio.CapacityLimiter(self.limits.workers)
        try:
            with anyio.fail_after(self.limits.seconds):
                found = await anyio.to_thread.run_sync(working, abandon_on_cancel=True, limiter=self._threads)
        except NoRoom as error:
            return JSONResponse({"detail": cut(str(error))}, 503, {"Retry-After": "1"})
        except TimeoutError:
            if late is not None:
                late.set()
            if not begun.is_set():
                return JSONResponse({"detail": "too many requests wait; ask again"}, 503, {"Retry-After": "1"})
            if handle is not None:
                self.instances.abandon(handle)
                self.counters.abandoned.inc()
            text = f"no answer within {self.limits.seconds:g} s; the instance is given up, make another one"
            return JSONResponse({"detail": text}, 504)
        except UnknownHandle as error:
            return self._refused(404, str(error.args[0]), resets)
        except ItemError as error:
            return self._refused(422, str(error), resets)
        except _Refusal as error:
            return self._refused(error.status, str(error), resets)
        except Exception as error:
            _log.exception("%s failed", self.service.name)
            return self._refused(500, f"{type(error).__name__}: {error}", resets)
        return Response(found, media_type="application/json")

    def _encoded(self, found: Any, handle: int | None) -> bytes:
        """An answer as JSON, lone surrogates replaced by question marks; if it is not JSON, the instance is closed."""
        try:
            text = json.dumps(found, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        except (TypeError, ValueError, RecursionError) as error:
            # The environment has advanced, but the client does not know how: its state is of no further use.
            if handle is not None:
                self.instances.close(handle)
            raise RuntimeError(f"the environment's answer is no JSON ({error}); the instance is closed") from error
        return text.encode("utf-8", "replace")

    def _refused(self, status: int, text: str, resets: bool) -> Response:
        text = cut(text).encode("utf-8", "replace").decode()
        if self.routes.errors is Errors.PAYLOAD:
            return JSONResponse({"error": text})
        if self.routes.errors is Errors.TEXT:
            if resets:
                return JSONResponse({"observation": "TimeoutError", "sites": "Error", "object": "Error"})
            answer = self.routes.fields(self.routes.step_fields, 0, StepResult(text))
            return JSONResponse(answer)
        if self.upstream:
            return PlainTextResponse("Internal Server Error", 500)
        return JSONResponse({"detail": text}, status)


def _add_routes(app: FastAPI, host_episodes: _Handlers) -> None:
    routes, prefix, handle = host_episodes.routes, host_episodes.routes.prefix, host_episodes.routes.handle
    greeting = f"This is environment {routes.title}." if routes.title else "ok"

    async def health() -> Response:
        return PlainTextResponse("ok") if routes.errors is Errors.TEXT else JSONResponse(greeting)

    async def metrics() -> Response:
        return Response(generate_latest(host_episodes.counters.registry), media_type=CONTENT_TYPE_LATEST)

    async def items() -> Response:
        if host_episodes.service.table is None:
            return JSONResponse({"items": host_episodes.service.items})
        return JSONResponse({"items": host_episodes.service.items, "table": host_episodes.service.table()})

    async def list_envs() -> Response:
        return JSONResponse(host_episodes.instances.handles())

    for path, function in (("/", health), ("/metrics", metrics), ("/items", items), ("/list_envs", list_envs)):
        app.add_api_route(path, function, methods=["GET"])

    async def create(body: Any) -> Response:
        late = threading.Event()
        return await host_episodes.answer(None, functools.partial(host_episodes.create, late), late=late)

    async def reset(body: Any) -> Response:
        mine = getattr(body, handle)
        given = getattr(body, routes.item)
        return await host_episodes.answer(mine, functools.partial(host_episodes.reset, mine, given), resets=True)

    async def step(body: Any, method: str = "step") -> Response:
        mine = getattr(body, handle)
        return await host_episodes.answer(mine, functools.partial(host_episodes.step, mine, body.action, method))

    async def close(body: Any) -> Response:
        mine = getattr(body, handle)
        return await host_episodes.answer(mine, functools.partial(host_episodes.close, mine))

    integer = Annotated[int, Field(ge=-MOST_ITEM, lt=MOST_ITEM)]
    number, text = (integer, ...), (Annotated[str, Field(max_length=host_episodes.limits.action_chars)], ...)
    asked = {name: (Any, ... if required else None) for name, required in (routes.create or {}).items()}
    further = {name: (Any, value) for name, value in routes.reset.items()}
    # AgentGym's TextCraft starts with the first item if none is named.
    item = (integer, 0) if routes.opens else number
    _post(app, f"{prefix}/create", create, asked, optional=routes.create is None)
    _post(app, f"{prefix}/reset", reset, {handle: number, **further, routes.item: item})
    for method in ("step", *routes.plays):
        _post(app, f"{prefix}/{method}", functools.partial(step, method=method), {handle: number, "action": text})
    if routes.closes or not host_episodes.upstream:
        _post(app, f"{prefix}/close", close, {handle: number})
    for name, fact in host_episodes.service.facts.items():
        app.add_api_route(f"{prefix}/{name}", functools.partial(_fact, fact), methods=["GET"], name=name)
    reads: dict[str, Callable[[int], Any]] = {"observation": host_episodes.observation, "detail": host_episodes.detail}
    reads |= {
        name: functools.partial(host_episodes.view, method) for name, method in host_episodes.service.views.items()
    }
    for name, read in reads.items():
        _get(app, f"{prefix}/{name}", read, host_episodes, handle)


async def _invalid(_: Request, error: Exception) -> Response:
    """FastAPI's answer to an invalid body or query, its echo of the input shortened; nothing has been played."""
    assert isinstance(error, RequestValidationError)
    detail = [
        {"type": each["type"], "loc": each["loc"], "msg": cut(each["msg"]), "input": cut(str(each["input"]), 200)}
        for each in error.errors()
    ]
    return JSONResponse({"detail": detail}, 422)


async def _fact(fact: Any) -> Response:
    return JSONResponse(fact)


def _post(
    app: FastAPI,
    path: str,
    function: Callable[[Any], Awaitable[Response]],
    fields: dict[str, Any],
    *,
    optional: bool = False,
) -> None:
    """Adds a route with these body fields; FastAPI reads them from the annotations of the function."""
    name = path.rpartition("/")[2]
    body: type[BaseModel] = create_model(
        f"{name.title().replace('_', '')}Body", __config__=ConfigDict(extra="ignore"), **fields
    )

    async def route(body: Any = None) -> Response:
        return await function(body)

    route.__annotations__["body"] = body | None if optional else body
    if not optional:
        route.__defaults__ = None
    app.add_api_route(path, route, methods=["POST"], name=name)


def _get(app: FastAPI, path: str, read: Callable[[int], Any], host_episodes: _Handlers, handle: str) -> None:
    """Adds a route with the handle in its query, under the name that its family uses."""

    async def by_id(id: int) -> Response:  # AgentGym's parameter name
        return await host_episodes.answer(id, functools.partial(read, id))

    async def by_env_idx(env_idx: int) -> Response:
        return await host_episodes.answer(env_idx, functools.partial(read, env_idx))

    app.add_api_route(path, by_id if handle == "id" else by_env_idx, methods=["GET"], name=path.rpartition("/")[2])
