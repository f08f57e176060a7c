"""Arbitrary request bodies: no status 500, no step played by a refused request, answers are strict JSON."""

import json

import hypothesis.strategies as st
import pytest
from counting import counting
from hypothesis import HealthCheck, given, settings
from starlette.testclient import TestClient

from agentrl_jax.services.protocol import COMPILED, routes_of
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits
from agentrl_jax.strict_json import parse

NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, -1, 2**31, 2**63, -(2**63) - 1, 10**4000, "0", "1e9", True])
)
TEXTS = st.text(st.characters(exclude_categories=()), max_size=40) | st.sampled_from(["a", "end", "x" * 3000, "\ud800"])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
NAMES = ("id", "env_idx", "action", "data_idx", "game", "seed", "session_id", "idx", "commands")
BODIES = st.one_of(
    st.fixed_dictionaries({"id": st.just(0), "env_idx": st.just(0), "action": TEXTS}),
    st.dictionaries(st.sampled_from(NAMES) | TEXTS, VALUES, max_size=5),
    VALUES,
)

WRITTEN = BODIES.map(lambda value: json.dumps(value).encode())
"""JSON as Python writes it, which is not always strict: NaN, infinities, half surrogate pairs."""

CONTENTS = st.one_of(
    WRITTEN,
    st.binary(max_size=60),
    st.tuples(WRITTEN, st.integers(0, 200), st.binary(max_size=3)).map(
        lambda drawn: drawn[0][: drawn[1]] + drawn[2] + drawn[0][drawn[1] :]
    ),
    st.integers(4290, 5000).map(lambda digits: b'{"id":0,"env_idx":0,"action":"a","x":' + b"9" * digits + b"}"),
    st.integers(1, 3000).map(lambda depth: b'{"id":' + b"[" * depth),
)
JSON = {"Content-Type": "application/json"}
HEADERS = st.sampled_from(
    [JSON, JSON, {"Content-Type": "text/plain"}, JSON | {"Origin": "null"}, JSON | {"Host": "evil.example"}]
)


@pytest.fixture(params=["ours", "maze", "textcraft", "webshop", "webarena"])
def client(request):
    routes = COMPILED if request.param == "ours" else routes_of(request.param)
    limits = Limits(instances=8, body_bytes=16_000, action_chars=2000)
    app = create_app(counting()[0], routes, limits)
    with TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=True) as client:
        client.routes = routes
        yield client


def test_no_body_breaks_the_server(client):
    routes, prefix, handle = client.routes, client.routes.prefix, client.routes.handle

    def played():
        answer = client.get(f"{prefix}/doubled", params={handle: 0}).json()
        return answer.get("doubled") if isinstance(answer, dict) else None

    def begin():
        client.post(f"{prefix}/reset", json={handle: 0, routes.item_field: 0})

    made = client.post(f"{prefix}/create", json={name: 0 for name in routes.create_body or {}})
    assert made.status_code == 200
    begin()

    @settings(max_examples=600, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(path=st.sampled_from(["step", "step", "reset", "create"]), content=CONTENTS, headers=HEADERS)
    def ask(path, content, headers):
        before = played()
        answer = client.post(f"{prefix}/{path}", content=content, headers=headers)
        assert answer.status_code in (200, 400, 403, 404, 409, 413, 415, 422, 503), answer.text
        found = parse(answer.content, "the answer")
        assert len(answer.content) < 5000
        if answer.status_code != 200 or (isinstance(found, dict) and set(found) == {"error"}):
            assert played() == before
        if path == "step" and answer.status_code == 200:
            begin()  # a finished episode refuses everything

    ask()
