"""Requests that a server refuses before anything is played, and invalid answers of environments."""

import json
import math

import httpx
import pytest
from counting import Counting, counting
from starlette.testclient import TestClient

from agentrl_jax.errors import UserError
from agentrl_jax.services.environment import StepResult
from agentrl_jax.services.protocol import COMPILED
from agentrl_jax.services.server.access import served_hosts
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits

AS_JSON = {"Content-Type": "application/json"}


class Odd(Counting):
    """Gives invalid answers on command."""

    def step(self, action):
        answers = {
            "half": StepResult("a\ud800b"),
            "nan": StepResult("a", reward=math.nan),
            "object": StepResult("a", info={"success": object()}),
        }
        if action == "long":
            raise RuntimeError("x" * 5_000_000)
        return answers.get(action) or super().step(action)


@pytest.fixture
def client():
    with TestClient(create_app(counting(Odd)[0], COMPILED), base_url="http://127.0.0.1:8000") as client:
        assert client.post("/create").json() == {"id": 0}
        assert client.post("/reset", json={"id": 0, "data_idx": 0}).json()["observation"] == "start 0"
        yield client


def played(client):
    """Number of steps that the environment has played."""
    return client.get("/doubled", params={"id": 0}).json()["doubled"] // 2


@pytest.mark.parametrize(
    ("host", "served"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:8000", True),
        ("LOCALHOST:1", True),
        ("[::1]", True),
        ("[::1]:8000", True),
        ("evil.example", False),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("127.0.0.1:8000:8000", False),
        ("localhost:x", False),
        ("10.0.0.5", False),
        ("[::1", False),
        ("", False),
    ],
)
def test_only_names_of_this_machine_are_served(client, host, served):
    answer = client.post("/create", headers={"Host": host})
    assert answer.status_code == (200 if served else 400)
    assert served or "--allowed_hosts" in answer.json()["detail"]
    assert len(client.get("/list_envs").json()) == 1 + served


def test_other_addresses_are_served_where_all_are_listened_on():
    limits = Limits(hosts=served_hosts("0.0.0.0", ("gpu7.lan",)), any_address=True)
    with TestClient(create_app(counting()[0], COMPILED, limits)) as client:
        for host, status in (("gpu7.lan:80", 200), ("10.0.0.5:80", 200), ("[fe80::1]:80", 200), ("evil.example", 400)):
            assert client.get("/", headers={"Host": host}).status_code == status
    assert set(served_hosts("10.0.0.5", ())) == {"10.0.0.5"}
    for wrong in ("http://a", "a:80", "*", ""):
        with pytest.raises(UserError) as refused:
            served_hosts("10.0.0.5", (wrong,))
        assert (refused.value.key, refused.value.value) == ("--allowed_hosts", wrong)
    with pytest.raises(UserError) as refused:
        served_hosts("", ())
    assert (refused.value.key, refused.value.value) == ("--host", "")


def test_web_pages_elsewhere_cannot_take_places(client):
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9000"):
        assert client.post("/create", headers={"Origin": origin}).status_code == 403
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        refused = client.post("/step", content='{"id": 0, "action": "a"}', headers={"Content-Type": kind})
        assert refused.status_code == 415
    assert client.get("/list_envs").json() == [0]
    assert played(client) == 0
    # The /docs page of this server.
    assert client.post("/create", headers={"Origin": "http://127.0.0.1:8000"}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        '{"id": 0, "action": "\\ud800"}',
        '{"id": 0, "action": "a", "more": NaN}',
        '{"id": 0, "action": "a", "more": -Infinity}',
        '{"id": 0, "action": "a", "more": 1e999}',
        '{"id": 0, "action": "a", "more": ' + "9" * 5000 + "}",
        '{"id": 0, "id": 0, "action": "a"}',
        '{"id": ' + "9" * 4000 + ', "action": "a"}',
        '{"id": "' + "9" * 5000 + '", "action": "a"}',
        '{"id": 0, "action": "' + "a" * 70_000 + '"}',
        '{"id": 0, "action": null}',
        "[" * 100_000,
        '{"id": 0, "action": "a"',
        b'{"id": 0, "action": "\xff"}',
    ],
)
def test_a_body_that_does_not_fit_plays_nothing(client, body):
    answer = client.post("/step", content=body, headers=AS_JSON)
    assert answer.status_code == 422
    assert answer.json()["detail"]
    assert len(answer.content) < 2000
    assert played(client) == 0


def test_answers_are_json_or_the_instance_is_closed(client):
    assert client.post("/step", json={"id": 0, "action": "half"}).json()["observation"] == "a?b"
    assert client.get("/observation", params={"id": 0}).json() == "a?b"
    for action in ("nan", "object"):
        handle = client.post("/create").json()["id"]
        client.post("/reset", json={"id": handle, "data_idx": 0})
        assert "is no JSON" in client.post("/step", json={"id": handle, "action": action}).json()["error"]
        assert handle not in client.get("/list_envs").json()


def test_what_is_said_and_logged_is_short(client, caplog):
    from agentrl_jax.services.server.run import JsonFormatter

    answer = client.post("/step", json={"id": 0, "action": "long"})
    assert answer.json()["error"].startswith("RuntimeError: xxx")
    assert len(answer.content) < 1000
    records = [record for record in caplog.records if record.exc_info]
    assert len(records) == 1
    line = JsonFormatter().format(records[0])
    assert len(line) < 10_000
    assert "RuntimeError: xxx" in json.loads(line)["error"]


def test_a_refusal_of_a_real_server_by_name(serve):
    url = serve(counting()[0], COMPILED)
    assert httpx.post(f"{url}/create", headers={"Host": "evil.example"}).status_code == 400
    assert httpx.get(f"{url}/list_envs").json() == []
