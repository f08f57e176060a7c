import concurrent.futures
import contextlib
import dataclasses
import socket
import threading
import time
import types
from unittest import mock

import httpx
import pytest
from counting import Counting, counting, wait_until
from serving import HTTP, running

from agentrl_jax.services.environment import StepResult
from agentrl_jax.services.environments.textcraft.env import SERVICE as TEXTCRAFT
from agentrl_jax.services.protocol import COMPILED, routes_of
from agentrl_jax.services.server import app
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.connections import bounded_protocol
from agentrl_jax.services.server.instances import MAX_PENDING_REQUESTS, Instances, NoRoom, UnknownHandle
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
    url = serve(TEXTCRAFT, routes_of("textcraft"))
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
    assert HTTP.get(f"{url}/docs").status_code == 200
    table = shown(url, "items")["table"]
    assert (len(table), table[0]) == (544, {"item": 0, "goal": "minecraft:acacia_planks", "depth": 1})
    assert 'requests_total{route="/items",status="200"} 1.0' in HTTP.get(f"{url}/metrics").text


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


def test_family_b(serve):
    url = serve(counting()[0], routes_of("webshop"))
    assert shown(url, "") == "ok"
    assert create(url).json() == 0
    assert told(url, "reset", env_idx=0, session_id=3) == ["start 3", None]
    step = {"state": "4 end", "reward": 1.0, "done": True, "info": None}
    assert told(url, "step", env_idx=0, action="end") == step
    assert shown(url, "observation?env_idx=0") == "4 end"
    assert shown(url, "list_envs") == [0]
    assert post(url, "step", env_idx=9, action="x").status_code == 404
    assert post(url, "reset", env_idx=0, session_id=-1).status_code == 422
    url = serve(counting()[0], routes_of("searchqa"))
    assert told(url, "create", id=5) == 0
    assert create(url).status_code == 422
    assert told(url, "reset", env_idx=0, id=5) == "start 5"


def test_family_c(serve):
    url = serve(counting()[0], routes_of("webarena"))
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
    url = serve(TEXTCRAFT, routes_of("textcraft"), upstream=True)
    post(url, "create")
    for _ in range(2):
        post(url, "step", id=0, action=GET)
        assert told(url, "step", id=0, action=CRAFT)["reward"] == 1
    url = serve(counting()[0], routes_of("webshop"), upstream=True)
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
    assert (len(shown(url, "list_envs")), made.opened, made.closed) == (2, 2, 0)


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
    service, made = counting()
    url = serve(service, COMPILED, Limits(instances=2, seconds=0.2, reclaim_after=100))
    begin(url, 2)
    late = post(url, "step", id=0, action="sleep 2")
    assert (late.status_code, "given up" in late.json()["detail"]) == (504, True)
    assert told(url, "step", id=1, action="a")["observation"] == "1 a"
    assert told(url, "step", id=0, action="a") == {"error": "The id 0 is not valid."}
    metrics = HTTP.get(f"{url}/metrics").text
    assert "instances_hung 1.0" in metrics
    assert "instances_abandoned_total 1.0" in metrics
    assert create(url).status_code == 503
    wait_until(lambda: create(url).status_code == 200)
    assert made.closed == 1


def test_large_bodies_are_refused_and_a_token_is_asked_for(serve):
    url = serve(counting()[0], COMPILED, Limits(body_bytes=1000))
    create(url)
    assert post(url, "step", id=0, action="x" * 2000).status_code == 413
    parts = (b"x" * 100 for _ in range(20))
    assert HTTP.post(f"{url}/step", content=parts).status_code == 413
    url = serve(counting()[0], COMPILED, Limits(token="geheim-ü"))
    assert HTTP.get(url).status_code == 200
    assert create(url).status_code == 401
    assert HTTP.post(f"{url}/create", headers={"Authorization": "Bearer wrong"}).status_code == 401
    right = {"Authorization": "Bearer geheim-ü".encode()}
    assert HTTP.post(f"{url}/create", headers=right).json() == {"id": 0}
    assert HTTP.get(f"{url}/metrics").status_code == 401


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

    url = serve(counting(Seen)[0], routes_of("sciworld"))
    post(url, "create")
    assert {"task_name", "var_num", "task_description"} <= told(url, "reset", id=0, data_idx=7).keys()
    found = told(url, "step_visual", id=0, action="a")
    assert (found["observation"], found["moves"], found["inventory"]) == ("8 a", 1, "a stick")
    assert found["object_tree"] is None
    assert post(url, "detail", id=0).status_code == 405
    assert shown(url, "detail?id=0")["observation"] == "8 a"


MOST = 20
STEP_HEAD = b"POST /step HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


@contextlib.contextmanager
def sockets(url, count, sent=b""):
    with contextlib.ExitStack() as stack:
        address = ("127.0.0.1", httpx.URL(url).port)
        made = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(count)]
        for each in made:
            each.sendall(sent)
        yield made


def ended(connection):
    """Whether the server closes a connection within ten seconds; data that it sends first is ignored."""
    with contextlib.suppress(ConnectionResetError):
        while connection.recv(1000):
            pass
    return True


def test_a_head_or_a_body_that_does_not_come_ends_the_connection():
    heads = (b"", b"POST /create HTTP/1.1\r\nHost: 127.0", b"GET / HTTP/1.1\r\nHost: a\r\n\r\nGET")
    app = create_app(counting()[0], COMPILED, Limits(arrival_seconds=0.2))
    with running(app, http=bounded_protocol(MOST, head_seconds=0.2), timeout_keep_alive=60) as url:
        for sent in heads:
            with sockets(url, 1, sent) as (connection,):
                assert ended(connection)
        with sockets(url, 1, STEP_HEAD % 10 + b"{") as (connection,):
            assert connection.recv(1000).startswith(b"HTTP/1.1 408 ")


def test_idle_connections_are_closed_for_new_ones_and_those_at_work_are_not():
    app = create_app(counting()[0], COMPILED)
    with running(app, http=bounded_protocol(MOST, head_seconds=60)) as url, sockets(url, 3 * MOST) as idle:
        assert HTTP.post(f"{url}/create").json() == {"id": 0}
        assert all(ended(each) for each in idle[: 2 * MOST])
    with running(create_app(counting()[0], COMPILED), http=bounded_protocol(2, head_seconds=60)) as url:
        begin(url, 2)
        with sockets(url, 2) as working:
            for handle, connection in enumerate(working):
                body = b'{"id": %d, "action": "sleep 0.6"}' % handle
                connection.sendall(STEP_HEAD % len(body) + body)
            time.sleep(0.2)
            with pytest.raises(httpx.TransportError):
                HTTP.get(url)
            assert all(each.recv(1000).startswith(b"HTTP/1.1 200 ") for each in working)


def instances(reclaimed=lambda: None, **limits):
    made, clock = counting()[1], types.SimpleNamespace(now=0.0)
    limits = Limits(**{"instances": 3, "idle_timeout": 0, "reclaim_after": 10.0} | limits)
    return Instances(made, limits, reclaimed=reclaimed, clock=lambda: clock.now), made, clock


def finish(held, handle):
    with held.use(handle) as instance:
        instance.last = StepResult("over", done=True)


def test_the_longest_idle_goes_first_and_counts_but_for_a_time_of_zero():
    reclaimed = mock.Mock()
    held, made, clock = instances(reclaimed)
    first, second, third = (held.create() for _ in range(3))
    clock.now = 9.9
    with pytest.raises(NoRoom):  # a burst does not take places of live episodes
        held.create()
    assert held.handles() == [first, second, third]
    for clock.now, handle in ((5, first), (12, third)):
        with held.use(handle):
            pass
    fourth = held.create()
    assert held.handles() == [first, third, fourth]
    with pytest.raises(UnknownHandle), held.use(second):
        pass
    with pytest.raises(NoRoom):
        held.create()
    assert reclaimed.call_count == made.closed == 1
    held, _, clock = instances(instances=1, reclaim_after=0.0)
    handle, clock.now = held.create(), 1e9
    with pytest.raises(NoRoom):
        held.create()
    finish(held, handle)
    assert held.create() != handle


def test_finished_ones_go_before_idle_ones_and_one_whose_request_is_in_flight_stays():
    held, _, clock = instances()
    idle, finished = held.create(), held.create()
    clock.now = 20
    young = held.create()
    finish(held, finished)
    fresh = held.create()
    assert held.handles() == [idle, young, fresh]
    held, _, clock = instances(instances=1)
    handle = held.create()
    clock.now = 100
    with held.use(handle) as instance:
        instance.last = StepResult("over", done=True)
        clock.now = 200
        with pytest.raises(NoRoom):
            held.create()
    assert held.create() != handle


@contextlib.contextmanager
def hanging(held, handle):
    """A request to an instance hangs inside the block, which gets a function that ends it."""
    free, inside = threading.Event(), threading.Event()

    def hang():
        with held.use(handle):
            inside.set()
            free.wait(20)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        pool.submit(hang)
        assert inside.wait(10)
        yield free.set


def test_requests_behind_one_that_hangs_end_too():
    held, *_ = instances(seconds=0.2)
    handle = held.create()

    def wait():
        with pytest.raises(UnknownHandle), held.use(handle):
            pass

    with hanging(held, handle) as end, concurrent.futures.ThreadPoolExecutor(MAX_PENDING_REQUESTS) as pool:
        for waiting in [pool.submit(wait) for _ in range(MAX_PENDING_REQUESTS - 1)]:
            waiting.result(10)
        held.abandon(handle)
        assert held.hung == 1
        end()
        wait_until(lambda: held.hung == 0)


def test_closing_one_that_hangs_does_not_take_a_thread_nor_free_its_place():
    held, made, _ = instances(instances=1, seconds=0.2)
    handle = held.create()
    with hanging(held, handle) as end:
        assert held.close(handle)
        assert (held.hung, made.closed) == (1, 0)
        with pytest.raises(NoRoom, match="1 of them hung"):
            held.create()
        assert not held.close(handle)
        end()
        wait_until(lambda: held.hung == 0)
    assert held.create() != handle
    assert made.closed == 1
