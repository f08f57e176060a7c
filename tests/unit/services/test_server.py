"""The server's routes in every family, its limits, and what happens to instances."""

import concurrent.futures
import dataclasses
import threading
import time

import httpx
import pytest
from counting import Counting, counting, wait_until
from serving import HTTP, running

from agentrl_jax.services.environments.textcraft.env import SERVICE as TEXTCRAFT
from agentrl_jax.services.protocol import COMPILED, ROUTES, routes_of
from agentrl_jax.services.server import app
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits

GET, CRAFT = "get 1 acacia logs", "craft 4 acacia planks using 1 acacia logs"


def post(url, path, **body):
    return HTTP.post(f"{url}/{path}", json=body)


def told(url, path, **body):
    return post(url, path, **body).json()


def shown(url, path):
    return HTTP.get(f"{url}/{path}").json()


def create(url):
    return HTTP.post(f"{url}/create")


def begin(url, count=1):
    for handle in range(count):
        create(url)
        post(url, "reset", id=handle, data_idx=0)


def test_textcraft_answers_as_agentgym_does(serve):
    url = serve(TEXTCRAFT, ROUTES["textcraft"])
    assert shown(url, "") == "This is environment TextCraft."
    made = told(url, "create", minecraft_dir="x")
    assert (made["id"], made["done"], made["reward"]) == (0, False, 0)
    assert made["observation"].startswith("Crafting commands:\n")

    started = told(url, "reset", id=0, data_idx=0)
    assert set(started) == {"id", "observation", "done", "reward"}
    assert started["observation"] == made["observation"]
    assert told(url, "reset", id="0") == started  # pydantic reads the number; item 0 where none is named
    assert told(url, "step", id=0, action=GET) == {"observation": "Got 1 acacia logs", "reward": 0, "done": False}
    assert shown(url, "observation?id=0") == "Got 1 acacia logs"
    assert shown(url, "goal?id=0") == "minecraft:acacia_planks"
    assert CRAFT in shown(url, "commands?id=0").splitlines()
    step = told(url, "step", id=0, action=CRAFT)
    assert step == {"observation": "Crafted 4 minecraft:acacia_planks", "reward": 1, "done": True}
    assert shown(url, "detail?id=0") == {**step, "deleted": False}
    assert told(url, "step", id=0, action="inventory") == {"error": "The task with environment 0 has finished."}
    assert [told(url, "close", id=0) for _ in range(2)] == [True, False]
    assert told(url, "step", id=0, action="inventory") == {"error": "The id 0 is not valid."}
    assert create(url).status_code == 422


def test_family_a_of_ours(serve):
    url = serve(counting()[0], routes_of("Counting"))
    assert shown(url, "") == "This is environment Counting."
    assert create(url).json() == {"id": 0}
    assert "no episode yet" in told(url, "step", id=0, action="a")["error"]
    answer = {"observation": "start 7", "reward": 0.0, "score": 0.0, "done": False, "deleted": False}
    assert told(url, "reset", id=0, data_idx=7) == answer
    step = {"observation": "8 b", "reward": 0.0, "score": 0.08, "done": False, "success": False, "truncated": False}
    assert told(url, "step", id=0, action="b") == step
    assert shown(url, "doubled?id=0") == {"doubled": 16}
    assert shown(url, "colors") == ["red"]
    assert told(url, "reset", id=0, data_idx=100) == {"error": "no item 100"}
    assert told(url, "step", id=0, action="fail") == {"error": "RuntimeError: told to fail"}
    text = 'ü\u2028\x00😀\ud7ff "\\'
    assert told(url, "step", id=0, action=text)["observation"] == f"9 {text}"
    assert shown(url, "doubled?id=4") == {"error": "The id 4 is not valid."}
    assert shown(url, "nothing") == {"detail": "Not Found"}
    (detail,) = told(url, "step", id=0)["detail"]
    assert (detail["type"], detail["loc"]) == ("missing", ["body", "action"])


def test_family_b(serve):
    url = serve(counting()[0], ROUTES["webshop"])
    assert shown(url, "") == "ok"
    assert create(url).json() == 0
    assert told(url, "reset", env_idx=0, session_id=3) == ["start 3", None]
    step = {"state": "4 end", "reward": 1.0, "done": True, "info": None}
    assert told(url, "step", env_idx=0, action="end") == step
    assert shown(url, "observation?env_idx=0") == "4 end"
    assert shown(url, "list_envs") == [0]
    assert post(url, "step", env_idx=9, action="x").status_code == 404
    assert post(url, "reset", env_idx=0, session_id=-1).status_code == 422
    url = serve(counting()[0], ROUTES["searchqa"])
    assert told(url, "create", id=5) == 0
    assert create(url).status_code == 422
    assert told(url, "reset", env_idx=0, id=5) == "start 5"


def test_family_c(serve):
    url = serve(counting()[0], ROUTES["webarena"])
    assert HTTP.get(url).text == "ok"
    assert create(url).json() == {"env_idx": 0}
    first = {"observation": "start 2", "sites": ["a"], "object": "count"}
    assert told(url, "reset", env_idx=0, seed=0, idx=2) == first
    bad = {"observation": "TimeoutError", "sites": "Error", "object": "Error"}
    assert told(url, "reset", env_idx=0, seed=0, idx=200) == bad
    failed = post(url, "step", env_idx=0, action="fail")
    assert failed.status_code == 200
    bad = {"observation": "RuntimeError: told to fail", "terminated": False, "truncated": False}
    assert bad.items() <= failed.json().items()
    assert told(url, "close", env_idx=0) == {"closed": "closed"}


def test_upstream_pays_for_a_second_goal_and_cannot_close(serve):
    url = serve(TEXTCRAFT, ROUTES["textcraft"], upstream=True)
    post(url, "create")
    for _ in range(2):
        post(url, "step", id=0, action=GET)
        assert told(url, "step", id=0, action=CRAFT)["reward"] == 1
    url = serve(counting()[0], ROUTES["webshop"], upstream=True)
    create(url)
    assert post(url, "close", env_idx=0).status_code == 404
    failed = post(url, "step", env_idx=9, action="x")
    assert (failed.status_code, failed.text) == (500, "Internal Server Error")


def test_no_more_instances_than_allowed(serve):
    service, made = counting()
    url = serve(service, COMPILED, Limits(instances=2))
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: create(url), range(16)))
    assert sorted(answer.status_code for answer in answers) == [200] * 2 + [503] * 14
    refused = next(answer for answer in answers if answer.status_code == 503)
    assert "2 instances" in refused.json()["detail"]
    assert refused.headers["retry-after"] == "1"
    handles = shown(url, "list_envs")
    assert len(set(handles)) == 2
    assert told(url, "close", id=handles[0]) is True
    assert create(url).json()["id"] not in handles
    assert (made.opened, made.closed) == (3, 1)


def test_idle_instances_are_closed(serve, monkeypatch):
    monkeypatch.setattr(app, "SWEEP_SECONDS", 0.05)
    service, made = counting()
    url = serve(service, COMPILED, Limits(idle_timeout=0.2))
    create(url)
    wait_until(lambda: made.closed)
    assert told(url, "reset", id=0, data_idx=1) == {"error": "The id 0 is not valid."}
    assert "instances_expired_total 1.0" in HTTP.get(f"{url}/metrics").text


def test_requests_to_one_instance_wait_for_each_other(serve):
    url = serve(counting()[0], COMPILED)
    begin(url)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: told(url, "step", id=0, action="sleep 0.01"), range(16)))
    assert sorted(answer["score"] for answer in answers) == [n / 100 for n in range(1, 17)]


def test_an_instance_that_hangs_is_given_up_keeps_its_place_and_others_go_on(serve):
    free = threading.Event()

    class Hung(Counting):
        def step(self, action):
            return super().step(action) if action == "a" else free.wait(20)

    service, made = counting(Hung)
    url = serve(service, COMPILED, Limits(instances=2, seconds=0.2, reclaim_after=100))
    begin(url, 2)
    late = post(url, "step", id=0, action="hang")
    assert late.status_code == 504
    assert "given up" in late.json()["detail"]
    assert told(url, "step", id=1, action="a")["observation"] == "1 a"
    assert told(url, "step", id=0, action="a") == {"error": "The id 0 is not valid."}
    metrics = HTTP.get(f"{url}/metrics").text
    assert "instances_hung 1.0" in metrics
    assert "instances_abandoned_total 1.0" in metrics
    refused = create(url)
    assert refused.status_code == 503
    assert "1 of them hung" in refused.json()["detail"]
    free.set()
    answers = []
    wait_until(lambda: answers.append(create(url)) or answers[-1].status_code == 200)
    assert answers[-1].json() == {"id": 2}
    assert made.closed == 1


def test_large_bodies_are_refused(serve):
    url = serve(counting()[0], COMPILED, Limits(body_bytes=1000))
    create(url)
    assert post(url, "step", id=0, action="x" * 2000).status_code == 413
    parts = (b"x" * 100 for _ in range(20))
    assert HTTP.post(f"{url}/step", content=parts).status_code == 413
    as_json = {"Content-Type": "application/json"}
    assert HTTP.post(f"{url}/step", content=b"[" * 900, headers=as_json).status_code == 422


def test_a_token_is_asked_for(serve):
    url = serve(counting()[0], COMPILED, Limits(token="geheim-ü"))
    assert HTTP.get(url).status_code == 200
    assert create(url).status_code == 401
    assert HTTP.post(f"{url}/create", headers={"Authorization": "Bearer wrong"}).status_code == 401
    right = {"Authorization": "Bearer geheim-ü".encode()}
    assert HTTP.post(f"{url}/create", headers=right).json() == {"id": 0}
    assert HTTP.get(f"{url}/metrics").status_code == 401


def test_documents_metrics_and_items(serve):
    url = serve(TEXTCRAFT, ROUTES["textcraft"])
    assert HTTP.get(f"{url}/docs").status_code == 200
    table = shown(url, "items")["table"]
    assert len(table) == 544
    assert table[0] == {"item": 0, "goal": "minecraft:acacia_planks", "depth": 1}
    assert 'requests_total{route="/items",status="200"} 1.0' in HTTP.get(f"{url}/metrics").text


def test_a_server_ends_though_a_request_hangs(monkeypatch):
    monkeypatch.setattr(app, "CLOSE_SECONDS", 0.2)
    service, made = counting()
    with running(create_app(service, COMPILED, Limits(seconds=30)), grace=0.2) as url:
        begin(url, 2)
        with pytest.raises(httpx.TimeoutException):
            HTTP.post(f"{url}/step", json={"id": 0, "action": "sleep 2"}, timeout=0.2)
    assert made.closed == 1  # the other one


def test_an_instance_that_nobody_waits_for_is_closed_again(serve):
    class Slow(Counting):
        def __init__(self, upstream=False):
            time.sleep(0.4)
            super().__init__(upstream)

    service, made = counting(Slow)
    url = serve(service, COMPILED, Limits(seconds=0.1))
    assert create(url).status_code == 504
    wait_until(lambda: made.closed)
    assert made.opened == made.closed == 1
    assert shown(url, "list_envs") == []


def test_a_further_route_that_plays_an_action(serve):
    class Seen(Counting):
        def step_visual(self, action):
            return dataclasses.replace(self.step(action), info={"moves": 1, "inventory": "a stick"})

    url = serve(counting(Seen)[0], ROUTES["sciworld"])
    post(url, "create")
    assert {"task_name", "var_num", "task_description"} <= told(url, "reset", id=0, data_idx=7).keys()
    found = told(url, "step_visual", id=0, action="a")
    assert (found["observation"], found["moves"], found["inventory"]) == ("8 a", 1, "a stick")
    assert found["object_tree"] is None
    assert post(url, "detail", id=0).status_code == 405
    assert shown(url, "detail?id=0")["observation"] == "8 a"
