"""The server's routes in every family, its limits, and what happens to instances."""

import concurrent.futures
import dataclasses
import time

import httpx
import pytest
from counting import Counting, counting
from serving import running

from agentrl_jax.services.environments.textcraft.env import SERVICE as TEXTCRAFT
from agentrl_jax.services.protocol import COMPILED, ROUTES, routes_of
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits

AS_JSON = {"Content-Type": "application/json"}


def post(url, path, **body):
    return httpx.post(f"{url}/{path}", json=body, timeout=10)


def test_textcraft_answers_as_agentgym_does(serve):
    url = serve(TEXTCRAFT, ROUTES["textcraft"])
    assert httpx.get(url).json() == "This is environment TextCraft."
    made = post(url, "create", minecraft_dir="x").json()
    assert made["id"] == 0
    assert made["done"] is False
    assert made["reward"] == 0
    assert made["observation"].startswith("Crafting commands:\n")
    assert made["observation"].endswith("planks.")
    started = post(url, "reset", id=0, data_idx=0).json()
    assert set(started) == {"id", "observation", "done", "reward"}
    assert started["observation"] == made["observation"]
    assert post(url, "reset", id="0").json() == started  # pydantic reads the number; item 0 where none is named
    step = post(url, "step", id=0, action="get 1 acacia logs").json()
    assert step == {"observation": "Got 1 acacia logs", "reward": 0, "done": False}
    assert httpx.get(f"{url}/observation?id=0").json() == "Got 1 acacia logs"
    assert httpx.get(f"{url}/goal?id=0").json() == "minecraft:acacia_planks"
    assert "craft 4 acacia planks using 1 acacia logs" in httpx.get(f"{url}/commands?id=0").json().splitlines()
    step = post(url, "step", id=0, action="craft 4 acacia planks using 1 acacia logs").json()
    assert step == {"observation": "Crafted 4 minecraft:acacia_planks", "reward": 1, "done": True}
    assert httpx.get(f"{url}/detail?id=0").json() == {**step, "deleted": False}
    assert post(url, "step", id=0, action="inventory").json() == {"error": "The task with environment 0 has finished."}
    assert post(url, "close", id=0).json() is True
    assert post(url, "close", id=0).json() is False
    assert post(url, "step", id=0, action="inventory").json() == {"error": "The id 0 is not valid."}
    assert httpx.post(f"{url}/create").status_code == 422


def test_upstream_pays_for_a_second_goal(serve):
    url = serve(TEXTCRAFT, ROUTES["textcraft"], upstream=True)
    post(url, "create")
    for _ in range(2):
        post(url, "step", id=0, action="get 1 acacia logs")
        assert post(url, "step", id=0, action="craft 4 acacia planks using 1 acacia logs").json()["reward"] == 1


def test_family_a_of_ours(serve):
    service, _ = counting()
    url = serve(service, routes_of("Counting"))
    assert httpx.get(url).json() == "This is environment Counting."
    assert httpx.post(f"{url}/create").json() == {"id": 0}
    assert post(url, "step", id=0, action="a").json() == {
        "error": "The environment 0 has no episode yet; reset it first."
    }
    answer = {"observation": "start 7", "reward": 0.0, "score": 0.0, "done": False, "deleted": False}
    assert post(url, "reset", id=0, data_idx=7).json() == answer
    assert post(url, "step", id=0, action="b").json() == {
        "observation": "8 b",
        "reward": 0.0,
        "score": 0.08,
        "done": False,
        "success": False,
        "truncated": False,
    }
    assert httpx.get(f"{url}/doubled?id=0").json() == {"doubled": 16}
    assert httpx.get(f"{url}/colors").json() == ["red"]
    assert post(url, "reset", id=0, data_idx=100).json() == {"error": "no item 100"}
    assert post(url, "step", id=0, action="fail").json() == {"error": "RuntimeError: told to fail"}
    assert post(url, "step", id=0, action="c").json()["observation"] == "9 c"
    assert httpx.get(f"{url}/doubled?id=4").json() == {"error": "The id 4 is not valid."}
    assert httpx.get(f"{url}/nothing").json() == {"detail": "Not Found"}
    detail = post(url, "step", id=0).json()["detail"]
    assert detail[0]["type"] == "missing"
    assert detail[0]["loc"] == ["body", "action"]


def test_families_b_and_c(serve):
    service, _ = counting()
    url = serve(service, ROUTES["webshop"])
    assert httpx.get(url).json() == "ok"
    assert httpx.post(f"{url}/create").json() == 0
    assert post(url, "reset", env_idx=0, session_id=3).json() == ["start 3", None]
    assert post(url, "step", env_idx=0, action="end").json() == {
        "state": "4 end",
        "reward": 1.0,
        "done": True,
        "info": None,
    }
    assert httpx.get(f"{url}/observation?env_idx=0").json() == "4 end"
    assert httpx.get(f"{url}/list_envs").json() == [0]
    assert post(url, "step", env_idx=9, action="x").status_code == 404
    assert post(url, "reset", env_idx=0, session_id=-1).status_code == 422
    url = serve(service, ROUTES["searchqa"])
    assert post(url, "create", id=5).json() == 0
    assert httpx.post(f"{url}/create").status_code == 422
    assert post(url, "reset", env_idx=0, id=5).json() == "start 5"
    url = serve(service, ROUTES["webarena"])
    assert httpx.get(url).text == "ok"
    assert httpx.post(f"{url}/create").json() == {"env_idx": 0}
    assert post(url, "reset", env_idx=0, seed=0, idx=2).json() == {
        "observation": "start 2",
        "sites": ["a"],
        "object": "count",
    }
    bad = {"observation": "TimeoutError", "sites": "Error", "object": "Error"}
    assert post(url, "reset", env_idx=0, seed=0, idx=200).json() == bad
    failed = post(url, "step", env_idx=0, action="fail")
    assert failed.status_code == 200
    assert failed.json()["observation"] == "RuntimeError: told to fail"
    assert failed.json()["terminated"] is False
    assert failed.json()["truncated"] is False
    assert post(url, "close", env_idx=0).json() == {"closed": "closed"}


def test_what_upstream_cannot_close_is_not_there(serve):
    service, _ = counting()
    url = serve(service, ROUTES["webshop"], upstream=True)
    httpx.post(f"{url}/create")
    assert post(url, "close", env_idx=0).status_code == 404
    failed = post(url, "step", env_idx=9, action="x")
    assert failed.status_code == 500
    assert failed.text == "Internal Server Error"


def test_no_more_instances_than_allowed(serve):
    service, made = counting()
    url = serve(service, COMPILED, Limits(instances=2))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: httpx.post(f"{url}/create", timeout=10), range(16)))
    assert sorted(answer.status_code for answer in answers) == [200] * 2 + [503] * 14
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert "2 instances" in refused.json()["detail"]
    assert refused.headers["retry-after"] == "1"
    handles = httpx.get(f"{url}/list_envs").json()
    assert len(set(handles)) == 2
    assert post(url, "close", id=handles[0]).json() is True
    assert httpx.post(f"{url}/create").json()["id"] not in handles
    assert made.opened == 3
    assert made.closed == 1


def test_idle_instances_are_closed(serve):
    service, made = counting()
    url = serve(service, COMPILED, Limits(idle_timeout=0.5))
    httpx.post(f"{url}/create")
    end = time.monotonic() + 20
    while made.closed == 0 and time.monotonic() < end:
        time.sleep(0.05)
    assert post(url, "reset", id=0, data_idx=1).json() == {"error": "The id 0 is not valid."}
    assert "instances_expired_total 1.0" in httpx.get(f"{url}/metrics").text


def test_requests_to_one_instance_wait_for_each_other(serve):
    service, _ = counting()
    url = serve(service, COMPILED)
    httpx.post(f"{url}/create")
    post(url, "reset", id=0, data_idx=0)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: post(url, "step", id=0, action="sleep 0.01").json(), range(24)))
    assert sorted(answer["score"] for answer in answers) == [n / 100 for n in range(1, 25)]


def test_an_instance_that_hangs_is_given_up_and_others_go_on(serve):
    service, made = counting()
    url = serve(service, COMPILED, Limits(seconds=0.3))
    for handle in (0, 1):
        httpx.post(f"{url}/create")
        post(url, "reset", id=handle, data_idx=0)
    late = post(url, "step", id=0, action="sleep 1.5")
    assert late.status_code == 504
    assert "given up" in late.json()["detail"]
    assert post(url, "step", id=1, action="a").json()["observation"] == "1 a"
    assert post(url, "step", id=0, action="a").json() == {"error": "The id 0 is not valid."}
    end = time.monotonic() + 20
    while made.closed == 0 and time.monotonic() < end:
        time.sleep(0.05)
    assert made.closed == 1


def test_large_bodies_are_refused(serve):
    service, _ = counting()
    url = serve(service, COMPILED, Limits(body_bytes=1000))
    httpx.post(f"{url}/create")
    assert post(url, "step", id=0, action="x" * 2000).status_code == 413

    def parts():
        for _ in range(20):
            yield b"x" * 100

    assert httpx.post(f"{url}/step", content=parts()).status_code == 413
    assert httpx.post(f"{url}/step", content=b"[" * 900, headers=AS_JSON).status_code == 422


def test_a_token_is_asked_for(serve):
    service, _ = counting()
    url = serve(service, COMPILED, Limits(token="geheim-ü"))
    assert httpx.get(url).status_code == 200
    assert httpx.post(f"{url}/create").status_code == 401
    assert httpx.post(f"{url}/create", headers={"Authorization": "Bearer wrong"}).status_code == 401
    right = {"Authorization": "Bearer geheim-ü".encode()}
    assert httpx.post(f"{url}/create", headers=right).json() == {"id": 0}
    assert httpx.get(f"{url}/metrics").status_code == 401


def test_documents_metrics_and_items(serve):
    url = serve(TEXTCRAFT, ROUTES["textcraft"])
    paths = httpx.get(f"{url}/openapi.json").json()["paths"]
    assert {"/create", "/reset", "/step", "/close", "/observation", "/detail", "/commands", "/goal"} <= set(paths)
    assert httpx.get(f"{url}/docs").status_code == 200
    table = httpx.get(f"{url}/items").json()["table"]
    assert len(table) == 544
    assert table[0] == {"item": 0, "goal": "minecraft:acacia_planks", "depth": 1}
    metrics = httpx.get(f"{url}/metrics").text
    assert 'requests_total{route="/items",status="200"} 1.0' in metrics


def test_closing_the_server_closes_its_instances():
    service, made = counting()
    with running(create_app(service, COMPILED)) as url:
        for _ in range(5):
            httpx.post(f"{url}/create")
    assert made.closed == 5


def test_texts_of_any_kind_come_back(serve):
    service, _ = counting()
    url = serve(service, COMPILED)
    httpx.post(f"{url}/create")
    post(url, "reset", id=0, data_idx=0)
    text = 'ü\u2028\x00😀\ud7ff "\\'
    assert post(url, "step", id=0, action=text).json()["observation"] == f"1 {text}"


def test_a_server_ends_though_a_request_hangs():
    from agentrl_jax.services.server import app as module

    service, made = counting()
    module_seconds, module.CLOSE_SECONDS = module.CLOSE_SECONDS, 0.2
    try:
        with running(module.create_app(service, COMPILED, Limits(seconds=30))) as url:
            for handle in (0, 1):
                httpx.post(f"{url}/create")
                post(url, "reset", id=handle, data_idx=0)
            with pytest.raises(httpx.TimeoutException):
                httpx.post(f"{url}/step", json={"id": 0, "action": "sleep 4"}, timeout=0.2)
    finally:
        module.CLOSE_SECONDS = module_seconds
    assert made.closed == 1  # the other one


def test_an_instance_that_nobody_waits_for_is_closed_again(serve):
    class Slow(Counting):
        def __init__(self, upstream=False):
            time.sleep(0.6)
            super().__init__(upstream)

    service, made = counting(Slow)
    url = serve(service, COMPILED, Limits(seconds=0.2))
    assert httpx.post(f"{url}/create", timeout=10).status_code == 504
    end = time.monotonic() + 20
    while made.closed == 0 and time.monotonic() < end:
        time.sleep(0.05)
    assert made.opened == made.closed == 1
    assert httpx.get(f"{url}/list_envs").json() == []


def test_a_further_route_that_plays_an_action(serve):
    class Seen(Counting):
        def step_visual(self, action):
            return dataclasses.replace(self.step(action), info={"moves": 1, "inventory": "a stick"})

    service, _ = counting(Seen)
    url = serve(service, ROUTES["sciworld"])
    post(url, "create")
    post(url, "reset", id=0, data_idx=7)
    told = post(url, "step_visual", id=0, action="a").json()
    assert told["observation"] == "8 a"
    assert (told["moves"], told["inventory"], told["object_tree"]) == (1, "a stick", None)
    assert post(url, "detail", id=0).status_code == 405
    assert httpx.get(f"{url}/detail?id=0").json()["observation"] == "8 a"
