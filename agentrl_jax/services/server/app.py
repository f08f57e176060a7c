"""The routes of a service, after AgentGym's protocol (`agentrl_jax.services.protocol`)."""

import contextlib
import functools
import json
import logging
import threading
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

import anyio
from fastapi import Body, FastAPI, Query
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import Field, create_model
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from agentrl_jax.services.environment import ItemError, Service, StepResult
from agentrl_jax.services.protocol import Errors, RouteSpec
from agentrl_jax.services.server.guard import Counters, Guard
from agentrl_jax.services.server.instances import Instance, Instances, NoRoom, UnknownHandle
from agentrl_jax.services.server.limits import ITEM_BOUND, Limits
from agentrl_jax.services.texts import cut

_log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""Seconds that instances have to finish when the server ends."""

SWEEP_SECONDS = 1.0
"""Seconds between two checks for idle instances."""


Work = Callable[[Any, threading.Event], Any]
"""The answer to a request, from its body, and an event that is set when the client has stopped waiting."""


class _NotPossible(Exception):
    """The episode does not allow the request now; the message is sent to the client."""


def create_app(service: Service, routes: RouteSpec, limits: Limits | None = None, *, upstream: bool = False) -> FastAPI:
    """The application of one service, with its routes and field names.

    `upstream` reproduces the bugs of AgentGym's server: some play steps after the end of an episode, some have no
    /close, and those that `Service.make` describes.
    """
    limits = limits or Limits()
    handlers = _Handlers(service, routes, limits, upstream)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handlers.sweep)
            yield
            tasks.cancel_scope.cancel()
        busy = await anyio.to_thread.run_sync(handlers.instances.close_all, CLOSE_SECONDS)
        if busy:
            _log.warning("%d instances are still at work and are left behind", busy)

    app = FastAPI(title=f"agentrl_jax: {service.name}", lifespan=lifespan)
    app.add_middleware(Guard, counters=handlers.counters, limits=limits)
    app.add_exception_handler(RequestValidationError, invalid)
    _add_server_routes(app, handlers)
    _add_instance_routes(app, handlers)
    return app


class _Handlers:
    """Answers the requests of all routes; the methods from `create` to `close` run in threads."""

    def __init__(self, service: Service, routes: RouteSpec, limits: Limits, upstream: bool):
        self.service, self.routes, self.limits, self.upstream = service, routes, limits, upstream
        self.counters = Counters()
        self.instances = Instances(lambda: service.make(upstream), limits, reclaimed=self.counters.reclaimed.inc)
        self.counters.instances.set_function(lambda: len(self.instances))
        self.counters.hung.set_function(lambda: self.instances.hung)
        self._threads: anyio.CapacityLimiter | None = None

    async def sweep(self) -> None:
        """Closes idle instances, forever."""
        while True:
            await anyio.sleep(SWEEP_SECONDS)
            self.counters.expired.inc(await anyio.to_thread.run_sync(self.instances.expire))

    def create(self, too_late: threading.Event) -> Any:
        """Opens an instance, and closes it again if the client has stopped waiting."""
        handle = self.instances.create()
        try:
            answer = StepResult("")
            if self.routes.create_starts_episode:
                with self.instances.use(handle) as instance:
                    instance.last = answer = instance.env.reset(handle - self.limits.first_handle)
            if too_late.is_set():
                raise TimeoutError
        except BaseException:
            self.instances.close(handle)
            raise
        return (
            self.routes.answer_fields(self.routes.create_fields, handle, answer)
            if self.routes.create_fields
            else handle
        )

    def reset(self, handle: int, item: int) -> Any:
        """Starts an episode."""
        with self.instances.use(handle) as instance:
            instance.last = answer = instance.env.reset(item)
        if self.routes.reset_answer == "text":
            return answer.observation
        if self.routes.reset_answer == "pair":
            return [answer.observation, None]
        return self.routes.answer_fields(self.routes.reset_fields, handle, answer)

    def step(self, method: str, handle: int, action: str) -> Any:
        """Plays an action with the given method of the environment."""
        with self.instances.use(handle) as instance:
            if _last(handle, instance).done and not (self.upstream and self.routes.steps_after_done):
                raise _NotPossible(f"The task with environment {handle} has finished.")
            instance.last = answer = getattr(instance.env, method)(action)
        if answer.done:
            self.counters.episodes.labels(str(self.service.solved(answer)).lower()).inc()
        return self.routes.answer_fields(self.routes.step_variants.get(method, self.routes.step_fields), handle, answer)

    def read(self, handle: int, read: Callable[[Instance], Any]) -> Any:
        """What `read` finds in an instance."""
        with self.instances.use(handle) as instance:
            return read(instance)

    def close(self, handle: int) -> Any:
        """Closes an instance."""
        closed = self.instances.close(handle)
        return {"closed": "closed"} if self.routes.errors is Errors.TEXT else closed

    async def answer(
        self, handle: int | None, work: Callable[[], Any], *, resets: bool = False, too_late: threading.Event
    ) -> Response:
        """The response to a request; errors have the form that the clients of this service expect.

        `work` runs in a thread. `handle` is None if the request concerns no instance; `too_late` is set when the client
        has stopped waiting.
        """
        begun = threading.Event()

        def working() -> bytes:
            begun.set()
            return self._encoded(work(), handle)

        if self._threads is None:
            self._threads = anyio.CapacityLimiter(self.limits.workers)
        try:
            with anyio.fail_after(self.limits.seconds):
                content = await anyio.to_thread.run_sync(working, abandon_on_cancel=True, limiter=self._threads)
        except NoRoom as error:
            return _busy(cut(str(error)))
        except TimeoutError:
            too_late.set()
            if not begun.is_set():
                return _busy("too many requests wait; ask again")
            if handle is not None:
                self.instances.abandon(handle)
                self.counters.abandoned.inc()
            text = f"no answer within {self.limits.seconds:g} s; the instance is given up, make another one"
            return JSONResponse({"detail": text}, 504)
        except UnknownHandle as error:
            return self._refused(404, str(error), resets)
        except ItemError as error:
            return self._refused(422, str(error), resets)
        except _NotPossible as error:
            return self._refused(409, str(error), resets)
        except Exception as error:
            _log.exception("%s failed", self.service.name)
            return self._refused(500, f"{type(error).__name__}: {error}", resets)
        return Response(content, media_type="application/json")

    def _encoded(self, answer: Any, handle: int | None) -> bytes:
        """An answer as JSON, lone surrogates replaced by question marks; if it is not JSON, the instance is closed."""
        try:
            text = json.dumps(answer, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
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
            return JSONResponse(self.routes.answer_fields(self.routes.step_fields, 0, StepResult(text)))
        if self.upstream:
            return PlainTextResponse("Internal Server Error", 500)
        return JSONResponse({"detail": text}, status)


def _last(handle: int, instance: Instance) -> StepResult:
    if instance.last is None:
        raise _NotPossible(f"The environment {handle} has no episode yet; reset it first.")
    return instance.last


def _busy(text: str) -> Response:
    return JSONResponse({"detail": text}, 503, {"Retry-After": "1"})


async def invalid(_: Request, error: Exception) -> Response:
    """FastAPI's answer to an invalid body or query, its echo of the input shortened; nothing has been played."""
    assert isinstance(error, RequestValidationError)
    detail = [
        {"type": each["type"], "loc": each["loc"], "msg": cut(each["msg"]), "input": cut(str(each["input"]), 200)}
        for each in error.errors()
    ]
    return JSONResponse({"detail": detail}, 422)


def _add_server_routes(app: FastAPI, handlers: _Handlers) -> None:
    """Adds the routes that concern no instance."""
    service, routes = handlers.service, handlers.routes

    @app.get("/")
    async def health() -> Response:
        if routes.errors is Errors.TEXT:
            return PlainTextResponse("ok")
        return JSONResponse(f"This is environment {routes.title}." if routes.title else "ok")

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(handlers.counters.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/items")
    async def items() -> Response:
        return JSONResponse({"items": service.items} | ({"table": service.table()} if service.table else {}))

    @app.get("/list_envs")
    async def list_envs() -> Response:
        return JSONResponse(handlers.instances.handles())

    async def fact(name: str) -> Response:
        return JSONResponse(service.facts[name])

    for name in service.facts:
        app.add_api_route(f"{routes.prefix}/{name}", functools.partial(fact, name), methods=["GET"], name=name)


def _add_instance_routes(app: FastAPI, handlers: _Handlers) -> None:
    """Adds the routes that open, play, show and close an instance, with the field names of `RouteSpec`."""
    routes, handle, item = handlers.routes, handlers.routes.handle, handlers.routes.item_field

    def get(name: str, read: Callable[[int, Instance], Any]) -> None:
        async def route(given: Annotated[int, Query(alias=handle)]) -> Response:
            work = functools.partial(handlers.read, given, functools.partial(read, given))
            return await handlers.answer(given, work, too_late=threading.Event())

        app.add_api_route(f"{routes.prefix}/{name}", route, methods=["GET"], name=name)

    def post(name: str, work: Work, fields: dict[str, Any], *, optional: bool = False, resets: bool = False) -> None:
        default = Body(None if optional else ...)

        async def route(body: Any = default) -> Response:
            given, too_late = getattr(body, handle, None), threading.Event()
            return await handlers.answer(given, lambda: work(body, too_late), resets=resets, too_late=too_late)

        model: Any = create_model(f"{name.title().replace('_', '')}Body", **fields)
        route.__annotations__["body"] = model | None if optional else model  # FastAPI reads the fields from here
        app.add_api_route(f"{routes.prefix}/{name}", route, methods=["POST"], name=name)

    integer = Annotated[int, Field(ge=-ITEM_BOUND, lt=ITEM_BOUND)]
    instance: dict[str, Any] = {handle: (integer, ...)}
    asked = {name: (Any, ... if required else None) for name, required in (routes.create_body or {}).items()}
    post("create", lambda _, too_late: handlers.create(too_late), asked, optional=routes.create_body is None)
    fields = instance | {name: (Any, value) for name, value in routes.reset_body.items()}
    # AgentGym's TextCraft starts with the first item if none is named.
    fields[item] = (integer, 0 if routes.create_starts_episode else ...)
    post("reset", lambda body, _: handlers.reset(getattr(body, handle), getattr(body, item)), fields, resets=True)
    text = (Annotated[str, Field(max_length=handlers.limits.action_chars)], ...)

    def step(method: str, body: Any, _: threading.Event) -> Any:
        return handlers.step(method, getattr(body, handle), body.action)

    def post_view(name: str, body: Any, _: threading.Event) -> Any:
        number = getattr(body, handle)

        def read(instance: Instance) -> Any:
            _last(number, instance)
            return getattr(instance.env, name)()

        return handlers.read(number, read)

    for method in ("step", *routes.step_variants):
        post(method, functools.partial(step, method), {**instance, "action": text})
    for name in routes.post_views:
        post(name, functools.partial(post_view, name), instance)
    if routes.has_close or not handlers.upstream:
        post("close", lambda body, _: handlers.close(getattr(body, handle)), instance)
    detail = (*routes.step_fields, "deleted")

    def view(name: str, _: int, instance: Instance) -> Any:
        return getattr(instance.env, name)()

    reads: dict[str, Callable[[int, Instance], Any]] = {
        "observation": lambda number, instance: _last(number, instance).observation,
        "detail": lambda number, instance: routes.answer_fields(detail, number, _last(number, instance)),
    }
    reads |= {name: functools.partial(view, name) for name in handlers.service.views}  # it may have its own detail
    for name, read in reads.items():
        get(name, read)
