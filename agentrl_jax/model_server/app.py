"""The routes: /v1/models, /v1/chat/completions and /v1/completions, after OpenAI's API."""

import asyncio
import contextlib
import functools
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, Gauge, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentrl_jax.model_server import bodies
from agentrl_jax.model_server.batcher import Batcher, QueueFull
from agentrl_jax.model_server.bodies import ChatBody, Choice, CompletionBody, Sampling
from agentrl_jax.model_server.sampler import Sampler, SampleRequest
from agentrl_jax.model_server.served_model import ServedModel
from agentrl_jax.services.server.guard import Guard, RequestCounters
from agentrl_jax.services.server.limits import Limits
from agentrl_jax.services.texts import cut

_log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0
"""Seconds that the program that runs has when the server ends."""

POLL_SECONDS = 0.25
"""Time between two looks at whether a client still waits."""


class _Refused(Exception):
    """A request that is not answered, with its status, and OpenAI's code for the reason if it has one."""

    def __init__(self, status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None):
        super().__init__(message)
        self.status, self.code, self.headers = status, code, headers

    def response(self) -> Response:
        kind = "invalid_request_error" if self.status < 429 else "server_error"
        error = {"message": cut(str(self)), "type": kind, "param": None, "code": self.code}
        return JSONResponse({"error": error}, self.status, self.headers)


def create_app(model: ServedModel, sampler: Sampler, limits: Limits, *, max_waiting: int) -> FastAPI:
    """The application of one model.

    Of `limits`, those of requests are read; `max_waiting` is the maximum number of responses that wait to be sampled.
    """
    batcher = Batcher(sampler, max_rows=sampler.max_rows, max_waiting=max_waiting)
    counters = _counters(batcher, sampler)
    handlers = _Handlers(model, sampler, batcher, limits.seconds)
    described = {"id": model.name, "object": "model", "created": int(time.time()), "owned_by": "agentrl_jax"}
    described |= {"max_model_len": sampler.context, **model.origin()}

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await anyio.to_thread.run_sync(batcher.close, CLOSE_SECONDS)

    app = FastAPI(title=f"agentrl_jax: {model.name}", lifespan=lifespan)
    app.add_middleware(Guard, counters=counters, limits=limits, refuse=_refusal)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _unknown)
    app.add_exception_handler(_Refused, _refuse)
    app.add_exception_handler(Exception, _failed)

    @app.get("/")
    async def health() -> Response:
        return JSONResponse("ok")

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(counters.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse({"object": "list", "data": [described]})

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        handlers.check_name(name)
        return JSONResponse(described)

    @app.post("/v1/chat/completions")
    async def chat(request: Request, body: ChatBody) -> Response:
        return _response(body, await handlers.chat(request, body))

    @app.post("/v1/completions")
    async def completions(request: Request, body: CompletionBody) -> Response:
        return _response(body, await handlers.complete(request, body))

    return app


def _response(body: Sampling, answer: dict[str, Any]) -> Response:
    if not body.stream:
        return JSONResponse(answer)
    # A program samples whole responses, so that a stream begins when they are complete.
    usage = body.stream_options is not None and body.stream_options.include_usage
    lines = [json.dumps(event, allow_nan=False) for event in bodies.events(answer, include_usage=usage)]
    text = "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]"))
    return Response(text, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


def _counters(batcher: Batcher, sampler: Sampler) -> RequestCounters:
    counters = RequestCounters()
    for name, words, value in (
        ("responses_waiting", "Responses that wait to be sampled", lambda: len(batcher)),
        ("responses_sampled", "Responses sampled", lambda: batcher.rows),
        ("dispatches", "Runs of a compiled program", lambda: batcher.dispatches),
        ("programs", "Compiled programs", sampler.programs),
    ):
        Gauge(name, words, registry=counters.registry).set_function(value)
    return counters


class _Handlers:
    """Answers requests of one model."""

    def __init__(self, model: ServedModel, sampler: Sampler, batcher: Batcher, seconds: float):
        self._model, self._sampler, self._batcher, self._seconds = model, sampler, batcher, seconds

    async def chat(self, request: Request, body: ChatBody) -> dict[str, Any]:
        """The answer to a conversation."""
        self.check_name(body.model or self._model.name)
        try:  # in a thread, because a long text takes seconds
            prompt = await anyio.to_thread.run_sync(lambda: self._model.prompt_ids(body.turns(self._model.tokenizer)))
        except ValueError as error:
            raise _Refused(400, str(error)) from error
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        to_answer = self._model.grammar is not None
        choices = await self._sample(request, body, [prompt], most, self._model.opening, to_answer=to_answer)
        answer = functools.partial(bodies.chat_answer, body, self._model.name, prompt, choices, self._model.tokenizer)
        return self._with_origin(await anyio.to_thread.run_sync(answer))

    async def complete(self, request: Request, body: CompletionBody) -> dict[str, Any]:
        """The answer to texts or token ids."""
        self.check_name(body.model or self._model.name)
        tokenizer = self._model.tokenizer
        try:
            prompts = await anyio.to_thread.run_sync(body.prompts, tokenizer)
        except ValueError as error:
            raise _Refused(400, str(error)) from error
        choices = await self._sample(request, body, prompts, body.max_tokens, "")
        answer = functools.partial(bodies.completion_answer, body, self._model.name, prompts, choices, tokenizer)
        return self._with_origin(await anyio.to_thread.run_sync(answer))

    def _with_origin(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Names run and step where OpenAI's API names the configuration that has answered."""
        return answer | {"system_fingerprint": f"{self._model.run}@{self._model.step}"} if self._model.run else answer

    def check_name(self, name: str) -> None:
        """Refuses the name of another model."""
        if name != self._model.name:
            text = f"there is no model {cut(name, 100)!r}; expected {self._model.name!r}"
            raise _Refused(404, text, "model_not_found")

    async def _sample(
        self,
        request: Request,
        body: Sampling,
        prompts: list[list[int]],
        most: int | None,
        opening: str,
        *,
        to_answer: bool = False,
    ) -> list[Choice]:
        """`body.n` responses to each prompt."""
        context, longest = self._sampler.context, self._sampler.max_tokens
        if most is not None and most > longest:
            raise _Refused(400, f"max_tokens is {most}, expected at most {longest} (--max_tokens)")
        length = max(map(len, prompts))
        if context - length < (most or 1):
            asked = f" and max_tokens is {most}" if most else ""
            text = f"the prompt has {length} tokens{asked}; this model's maximum context length is {context} tokens"
            raise _Refused(400, text, "context_length_exceeded")
        if len(prompts) * body.n > self._batcher.max_waiting:
            asked = f"n is {body.n}" + (f" and prompt has {len(prompts)} texts" if len(prompts) > 1 else "")
            raise _Refused(400, f"{asked}, expected at most {self._batcher.max_waiting} responses (--max_waiting)")
        seed = secrets.randbits(63) if body.seed is None else body.seed
        top_k = max(0, body.top_k)  # vLLM's value for no limit is -1
        requests = [
            SampleRequest(
                tuple(prompt),
                min(context - len(prompt), longest) if most is None else most,
                body.temperature,
                seed,
                choice,
                top_k,
                body.top_p,
                to_answer,
            )
            for prompt in prompts
            for choice in range(body.n)
        ]
        tokenizer = self._model.tokenizer
        responses = await self._wait(request, requests)
        try:
            for response in responses:
                bodies.check_logprobs(response)
        except ValueError as error:
            raise _Refused(500, str(error)) from error

        def choices() -> list[Choice]:
            return [bodies.choice_of(response, tokenizer, opening, body.stops) for response in responses]

        return await anyio.to_thread.run_sync(choices)  # other requests need not wait for many long texts

    async def _wait(self, request: Request, requests: Sequence[SampleRequest]) -> Any:
        try:
            futures = self._batcher.submit(requests)
        except QueueFull as error:
            raise _Refused(429, str(error), None, {"Retry-After": str(error.seconds)}) from error
        responses = asyncio.gather(*map(asyncio.wrap_future, futures))
        watch = asyncio.create_task(_cancel_if_gone(request, responses))
        try:
            async with asyncio.timeout(self._seconds):
                return await responses
        except TimeoutError as error:
            raise _Refused(504, f"no answer within {self._seconds:g} s; ask for fewer tokens, or later") from error
        except asyncio.CancelledError:  # by the watch, or by the end of the server
            if watch.done():
                raise _Refused(499, "the client has gone") from None
            raise _Refused(503, "the server ends", None, {"Retry-After": "5"}) from None
        except Exception as error:
            _log.error("a request could not be answered: %s", cut(f"{type(error).__name__}: {error}"))
            raise _Refused(500, f"the response could not be sampled ({type(error).__name__})") from error
        finally:
            watch.cancel()
            for future in futures:  # of what still waits after an error, nobody reads the response
                future.cancel()


async def _cancel_if_gone(request: Request, responses: asyncio.Future[Any]) -> None:
    """Takes responses out of the queue whose client has closed its connection: it may have asked again meanwhile."""
    while not await request.is_disconnected():
        await asyncio.sleep(POLL_SECONDS)
    responses.cancel()


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, _Refused)
    return error.response()


async def _failed(_: Request, error: Exception) -> Response:
    """An error of the server itself, which uvicorn logs."""
    return _Refused(500, f"the answer failed ({type(error).__name__})").response()


async def _invalid(_: Request, error: Exception) -> Response:
    """What is wrong with the fields of a body, in one line."""
    assert isinstance(error, RequestValidationError)
    wrong = []
    for each in error.errors():
        where, what = ".".join(map(str, each["loc"][1:])), each["msg"].removeprefix("Value error, ")
        given = each["input"]
        if not where:
            what = "the body is empty, expected a JSON object" if each["type"] == "missing" else what
        elif each["type"] not in ("missing", "value_error") and isinstance(given, str | int | float | None):
            where += f" is {cut(json.dumps(given), 100)}"
        wrong.append(cut(f"{where}: {what}" if where else what, 300))
    return _Refused(400, "; ".join(wrong[:5])).response()


async def _unknown(_: Request, error: Exception) -> Response:
    """No such route, or no such method of it."""
    assert isinstance(error, HTTPException)
    routes = "expected GET /v1/models, POST /v1/chat/completions or POST /v1/completions"
    return _Refused(error.status_code, f"{error.detail}; {routes}", None, dict(error.headers or {})).response()


def _refusal(status: int, message: str) -> Response:
    """What `Guard` answers; to an invalid body OpenAI's API answers 400."""
    return _Refused(400 if status == 422 else status, message).response()
