"""A retriever over HTTP, and its client."""

import json

import httpx
import numpy as np
import pytest
from refusing import refusal
from serving import HTTP, running
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from agentrl_jax.retrieval.controls import Random
from agentrl_jax.retrieval.corpus import Corpus
from agentrl_jax.retrieval.registry import make_retriever
from agentrl_jax.retrieval.remote import Http
from agentrl_jax.retrieval.retriever import listed
from agentrl_jax.services.server.limits import Limits
from agentrl_jax.services.server.retriever_app import create_retriever_app

CORPUS = Corpus.of(
    [("Emma", "a novel"), ("Persuasion", "another novel"), ("Ulysses", "a longer one"), ("", "no title")]
)


class ByLength:
    """Finds the passages whose text is longer than the query, the lowest number first."""

    def search(self, queries, k, *, gold=None):
        rows = [[i for i, each in enumerate(CORPUS.passages) if len(each.text) > len(query)] for query in queries]
        scores = np.tile(np.float32([4, 3, 2, 1]), (len(queries), 1))
        return listed(rows, k, scores)


@pytest.fixture(scope="module")
def address():
    with running(create_retriever_app(CORPUS, ByLength(), Limits(action_chars=100), topk=2)) as found:
        yield found


def ask(address, **body):
    answer = HTTP.post(f"{address}/retrieve", json=body)
    return answer.json()["result"] if answer.status_code == 200 else answer.status_code


def test_every_query_gets_a_list_with_and_without_scores(address):
    emma = {"id": "0", "contents": '"Emma"\na novel', "title": "Emma", "text": "a novel"}
    scored = ask(address, queries=["x", "x" * 12, "x" * 50], topk=1, return_scores=True)
    assert scored[0] == [{"document": emma, "score": 4.0}]
    assert [[entry["document"]["title"] for entry in row] for row in scored] == [["Emma"], ["Persuasion"], []]
    plain = ask(address, queries=["x", "x"], topk=None)
    assert plain == [[emma, plain[0][1]]] * 2
    assert len(ask(address, queries=["x"])[0]) == 2
    assert ask(address, queries=[]) == []


@pytest.mark.parametrize(
    "body",
    [
        *({}, {"queries": "x"}, {"queries": [1]}, {"queries": ["x"], "topk": 0}, {"queries": ["x" * 101]}),
        *({"queries": ["x"], "more": 1}, {"queries": ["x"], "topk": True}, {"queries": ["x"] * 1025}),
    ],
)
def test_what_is_no_request_is_refused(address, body):
    assert ask(address, **body) == 422


def test_a_client_finds_what_the_server_finds(address):
    here, there = ByLength(), make_retriever(address, CORPUS, 0)
    for k in (1, 4):
        expected, found = (each.search(["x", "x" * 12, "x" * 50], k) for each in (here, there))
        for ours, theirs in zip(found, expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert there.search([], 2).ids.shape == (0, 2)
    assert "422" in str(refusal(there.search, ["x" * 101], 1))
    assert refusal(Http(Corpus.of([("Emma", "shorter")]), address).search, ["x" * 7], 1).key == f"{address}/retrieve"


@pytest.mark.parametrize(
    ("status", "content", "asked"),
    [
        (200, b"no JSON", 1),
        (200, b'{"result": []}', 1),
        (200, b'{"result": [["Emma"]]}', 1),
        (200, b'{"result": [[{"document": {"id": "9"}, "score": 1}]]}', 1),
        (403, b"forbidden", 1),
        (500, b"", 2),
    ],
)
def test_a_wrong_answer_is_an_error_and_a_server_that_fails_is_asked_twice(status, content, asked):
    seen = []

    async def answer(request):
        seen.append(json.loads(await request.body()))
        return Response(content, status)

    with running(Starlette(routes=[Route("/retrieve", answer, methods=["POST"])])) as address:
        error = refusal(Http(CORPUS, address).search, ["x"], 3)
    assert address in str(error)
    assert seen == [{"queries": ["x"], "topk": 3, "return_scores": True}] * asked


def test_a_dead_server_and_what_is_no_address_are_named():
    with running(create_retriever_app(CORPUS, Random(CORPUS, 0))) as address:
        pass
    assert address in str(refusal(Http(CORPUS, address, seconds=5).search, ["x"], 3))
    for wrong in ("http://", "ftp://host"):
        assert refusal(Http, CORPUS, wrong).value == wrong
    assert httpx.URL(address).host == "127.0.0.1"
