"""A server that gives arbitrary answers to the services' client, and what the client must make of them."""

import json

import pytest
from damage import damaged, with_odd_values
from scripted_server import Listening

from agentrl_jax.errors import MAX_FOREIGN
from agentrl_jax.services import client as module
from agentrl_jax.services.answers import LARGEST
from agentrl_jax.services.client import ServiceClient, ServiceError
from agentrl_jax.services.environment import ItemError
from agentrl_jax.services.protocol import COMPILED, routes_of

WIRE = {name: routes_of(name) for name in ("textcraft", "alfworld", "wordle", "webshop", "webarena", "weather")}
WIRE["ours"] = COMPILED
SECONDS = 20.0

WORDS = [
    *(b"NaN", b"Infinity", b"-Infinity", b"null", b"true", b'"0"', b"1e999", b"-1e31", b"9" * 5000),
    *(b'"\\ud800"', b'"\\udfff x"', b"[" * 3000, b'{"a":' * 3000, b'"error":"x",', b'"reward":0,', b'"done":false,'),
    *(b"0." + b"9" * 5000, b"\xff\xfe", b"\0", b"\r\n", b"{}", b"[]", b'"', b",", b":"),
]
LINES = [
    *(b"HTTP/1.1 204 No Content\r\n", b"HTTP/1.1 302 Found\r\nLocation: /x\r\n", b"HTTP/9.9 xyz\r\n", b"\r\n\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n"),
    *(b"Content-Encoding: gzip\r\n", b"HTTP/1.1 500 x\r\n", b"HTTP/1.1 503 x\r\n", b"HTTP/1.1 422 x\r\n"),
    *(b"X: " + b"y" * 200_000 + b"\r\n", b"ffffffffffffffff\r\n", b"HTTP/1.1 100 Continue\r\n\r\n", b"\xff: \0\r\n"),
]


@pytest.fixture
def raw_server(monkeypatch):
    # Requests that may be repeated would otherwise be repeated until the deadline.
    monkeypatch.setattr(module, "FIRST_PAUSE", 10 * SECONDS)
    # After a damaged answer, the server may close the connection while the next request is on its way.
    monkeypatch.setattr(module, "KEPT_SECONDS", 0.0)
    with Listening(lambda handler, _: handler.wfile.write(server.answer)) as server:
        yield server
        server.shutdown()


def response(body, status=b"200 OK"):
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(body), body)


def sound(routes, route):
    values = {"observation": "You see é.", "state": "A door.", "reward": 0.5, "score": 0.75, "success": False}
    values |= {"done": False, "terminated": False, "truncated": False, "deleted": False, "id": 3, "env_idx": 3}
    values |= {"available_actions": ["go", "look"], "info": {"a": [1, None]}, routes.handle: 3}
    if route == "create":
        return {name: values.get(name) for name in routes.create_fields} if routes.create_fields else 3
    if route == "observation" or (route == "reset" and routes.reset_answer == "text"):
        return values["observation"]
    if route == "reset" and routes.reset_answer == "pair":
        return [values["observation"], None]
    return {name: values.get(name) for name in (routes.reset_fields if route == "reset" else routes.step_fields)}


def ask(client, route):
    """Returns how the client reads the answer; None if it refuses it. Other errors propagate."""
    args = {"create": (3,), "reset": (3, 3), "step": (3, "go"), "observation": (3,)}[route]
    try:
        return getattr(client, route)(*args)
    except (ServiceError, ItemError) as error:
        text = str(error)
        assert text
        assert len(text) <= MAX_FOREIGN + 200
        assert text.isprintable(), ascii(text)
        return None


def check_read(routes, route, body, read):
    found = json.loads(body)
    if route == "create":
        assert type(read) is int
        assert read == (found[routes.handle] if routes.create_fields else found)
    elif route == "observation":
        assert read == found
    elif route == "reset":
        assert isinstance(read.observation, str)
        assert isinstance(read.done, bool)
        assert abs(read.reward) < LARGEST
    else:
        text = found["state" if "state" in routes.step_fields else "observation"]
        done = found["terminated" if "terminated" in routes.step_fields else "done"]
        assert (type(text), type(done)) == (str, bool)
        assert type(found["reward"]) in (int, float)
        assert (read.observation, read.done) == (text, done)
        assert read.reward == (float(found["reward"]) if done or not routes.final_reward_only else 0.0)
        if routes.cumulative_score:
            assert read.score == float(found["score"])


def play(server, name, routes, number, rng):
    """Calls each route `number` times; returns how many answers were accepted and how many were refused."""
    spec, counts = WIRE[name], {True: 0, False: 0}
    client = ServiceClient(f"http://127.0.0.1:{server.server_address[1]}", spec, seconds=SECONDS, connections=1)
    for route in routes:
        tree = sound(spec, route)
        plain = json.dumps(tree).encode()
        for each in range(number):
            body = plain
            if each % 4 == 1 and isinstance(tree, dict | list):
                body = json.dumps(with_odd_values(tree, rng)).encode()
            elif each % 4 in (1, 2):
                body = damaged(plain, rng, WORDS)
            elif each % 8 == 7:
                depth = rng.choice([*range(880, 1000), 10**5])
                body = rng.choice([b"%s", b'{"error":%s}', b'{"reward":%s}']) % (b"[" * depth + b"]" * depth)
            server.answer = response(body)
            if each % 8 == 3:
                server.answer = damaged(server.answer, rng, LINES)
            read = ask(client, route)
            counts[read is not None] += 1
            assert read is not None or each % 4 != 0, (name, route)
            if read is not None and each % 8 != 3 and not (route == "reset" and spec.fetches_observation):
                check_read(spec, route, body, read)
    client.close()
    return counts
