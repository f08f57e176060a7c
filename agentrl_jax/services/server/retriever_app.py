"""A retriever over HTTP: `POST /retrieve`, as clients of Search-R1, verl-agent, rLLM and slime call it."""

import functools
from typing import Annotated, Any

import anyio
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.responses import JSONResponse, Response

from agentrl_jax.retrieval.corpus import Corpus, Passage
from agentrl_jax.retrieval.retriever import Retriever
from agentrl_jax.services.server.app import invalid
from agentrl_jax.services.server.guard import Guard, RequestCounters
from agentrl_jax.services.server.limits import Limits

MAX_QUERIES = 1024
MAX_PASSAGES = 1000
"""Most queries of a request, and most passages of each."""


def create_retriever_app(corpus: Corpus, retriever: Retriever, limits: Limits | None = None, *, topk: int = 3) -> Any:
    """The application of a retriever over a corpus; `topk` passages are found for each query where none are asked for.

    A request is {"queries": [text], "topk": number or null, "return_scores": true or false}, and the answer
    {"result": [one list a query]}. With scores an entry is {"document": {...}, "score": number}, else the document:
    id, contents (the title in quotes, a line feed, the text), title and text. A query longer than
    `limits.action_chars` characters is refused with status 422, as whatever is no such request.
    """
    limits = limits or Limits()
    counters = RequestCounters()
    app = FastAPI(title="agentrl_jax: retriever")
    app.add_middleware(Guard, counters=counters, limits=limits)
    app.add_exception_handler(RequestValidationError, invalid)
    # One search at a time: its arrays are large, and more of them would share the same cores.
    alone = anyio.CapacityLimiter(1)
    text = Annotated[str, Field(max_length=limits.action_chars)]
    fields: dict[str, Any] = {"queries": (Annotated[list[text], Field(max_length=MAX_QUERIES)], ...)}  # type: ignore[valid-type]
    body_model = create_model("RetrieveBody", __base__=_Body, **fields)

    @app.get("/")
    async def health() -> Response:
        return JSONResponse("ok")

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(counters.registry), media_type=CONTENT_TYPE_LATEST)

    async def retrieve(body: Any) -> Response:
        search = functools.partial(retriever.search, body.queries, body.topk or topk)
        found = await anyio.to_thread.run_sync(search, limiter=alone)
        result: list[list[Any]] = []
        for ids, scores, number in zip(found.ids.tolist(), found.scores.tolist(), found.found.tolist()):
            documents = [_document(corpus.passages[id_]) for id_ in ids[:number]]
            scored = [{"document": each, "score": score} for each, score in zip(documents, scores)]
            result.append(scored if body.return_scores else documents)
        return JSONResponse({"result": result})

    retrieve.__annotations__["body"] = body_model  # FastAPI reads the fields from here
    app.add_api_route("/retrieve", retrieve, methods=["POST"])
    return app


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    topk: Annotated[int, Field(ge=1, le=MAX_PASSAGES)] | None = None
    return_scores: bool = False


def _document(passage: Passage) -> dict[str, str]:
    return {"id": passage.name, "contents": passage.contents, "title": passage.title, "text": passage.text}
