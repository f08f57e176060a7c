import contextlib
import http.server
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from counting import counting
from processes import free_address
from scripted_server import Scripted

from agentrl_jax.errors import BadValue
from agentrl_jax.services.catalog import NAMES, get_service
from agentrl_jax.services.client import Lost, ServiceClient, ServiceError
from agentrl_jax.services.environment import ItemError
from agentrl_jax.services.pools import LocalPool, RemotePool
from agentrl_jax.services.protocol import COMPILED, routes_of
from agentrl_jax.services.server.limits import Limits

STEP = {"observation": "x", "reward": 1.0, "score": 1.0, "done": True, "success": True}


def client_of(server, routes=COMPILED, seconds=5.0):
    return ServiceClient(server.url, routes, seconds=seconds)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_plays_an_episode(serve, name):
    service, made = counting()
    routes = routes_of(name)
    client = ServiceClient(serve(service, routes), routes, seconds=10)
    assert client.healthy()
    handle = client.create(7)
    first = client.reset(handle, 7)
    shown = {"sciworld": "Count.\nstart 7", "alfworld": "start 7\nAVAILABLE ACTIONS: look,go"}
    assert (first.observation, first.done) == (shown.get(name, "start 7"), False)
    step = client.step(handle, "a")
    # If reset opens an instance at once, it counts from the item of its handle.
    assert (step.observation, step.reward, step.done) == ("8 a", 0, False)
    assert step.score == (0.08 if routes.cumulative_score else 0)
    last = client.step(handle, "end")
    assert (last.reward, last.done) == (1.0, True)
    if name == "webshop":
        with pytest.raises(ItemError, match="no item 500"):
            client.reset(handle, 500)
    client.shut(handle)
    assert made.closed == 1
    client.close()


def test_rewards_before_the_end_do_not_count_in_webarena():
    answer = {"observation": "page", "reward": 1.0, "terminated": False, "truncated": False, "info": None}
    client = client_of(Scripted((200, answer), (200, {**answer, "terminated": True})), routes_of("webarena"))
    assert [client.step(0, action).reward for action in ("```click [1]```", "```stop []```")] == [0.0, 1.0]


def test_what_fails_for_a_while_is_asked_again_but_a_step_is_sent_once():
    server = Scripted((503, {"detail": "full"}), b"", (502, b"<html>"), (200, {"id": 5}), (503, {"detail": "full"}))
    client = client_of(server, seconds=20)
    assert client.create() == 5
    with pytest.raises(Lost, match="status 503"):
        client.step(0, "a")
    assert [path for path, _ in server.seen] == ["/create"] * 4 + ["/step"]


DONE = b'"done": false, "score": 0, "success": false}'
GARBAGE = [
    *((200, content) for content in (b"<html>", b"\xff\xfe", b"[" * 100_000, [], {"error": "It is not valid."})),
    *((200, b'{"observation": "x", "reward": ' + number + DONE) for number in (b"NaN,", b"1e999,")),
    *((404, {"detail": "no"}), (500, b"Internal Server Error")),
    *((200, {**STEP, name: value}) for name, value in (("reward", True), ("done", 1), ("observation", "\ud800"))),
    *((200, {**STEP, "error": error}) for error in ("it broke", "")),
    b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
]


def test_a_whole_answer_under_another_status_is_lost():
    """Like a bad body, so the episode is played again in another instance; no redirect is followed."""
    statuses = (201, 206, 301, 307)
    answers = [[(status, {"id": 5}), (status, {**STEP, "id": 5}), (status, STEP)] for status in statuses]
    server = Scripted(*(answer for three in answers for answer in three), (200, STEP))
    client = client_of(server)
    for status in statuses:
        for ask in (client.create, lambda: client.reset(5, 0), lambda: client.step(5, "a")):
            with pytest.raises(Lost, match=f"status {status}, expected 200"):
                ask()
    assert client.step(5, "a").done
    assert len(server.seen) == 3 * len(statuses) + 1


RESET = {"observation": "x", "task_description": "y"}
DEFECTS = [  # of AgentGym's wires
    *(("babyai", "create", found) for found in ({"id": True}, {"id": -1}, 3)),
    ("searchqa", "create", {"env_idx": 3}),
    *(("webshop", "reset", found) for found in ("text", ["text"], [None, None])),
    *((name, "reset", {"observation": "x"}) for name in ("searchqa", "sciworld", "alfworld")),
    *(("sciworld", "reset", {**RESET, **found}) for found in ({"reward": True}, {"done": 0})),
    ("alfworld", "reset", {"observation": "x", "available_actions": "go"}),
    ("textcraft", "reset", {"id": 8, "observation": "x", "done": False, "reward": 0}),
    ("textcraft", "reset", {"id": 7, "observation": "x", "error": "no"}),
    *((name, "step", {"observation": "x", "reward": 0.0, "done": False}) for name in ("webshop", "webarena")),
    ("webarena", "step", {"observation": "x", "reward": 0.0, "terminated": False, "truncated": "no"}),
]


def test_what_no_server_answers_is_a_service_error():
    answers = [("", "step", answer) for answer in GARBAGE] + [(*of, (200, body)) for *of, body in DEFECTS]
    server = Scripted(*(answer for *_, answer in answers), (200, {**STEP, "error": None}))
    for name, route, _ in answers:
        client = client_of(server, routes_of(name) if name else COMPILED)
        ask = {"create": client.create, "reset": lambda: client.reset(7, 0), "step": lambda: client.step(7, "a")}  # noqa: B023
        with pytest.raises(Lost if name else ServiceError, match=f"/{route}: "):
            ask[route]()
        client.close()
    answer = client_of(server).step(7, "a")  # the defects remove or change everything that a step needs
    assert (answer.observation, answer.reward, answer.done) == ("x", 1.0, True)


def test_what_a_server_says_at_length_is_cut(monkeypatch):
    long = [(200, {"error": "no\n\x1b[31m" * 500_000}), (500, b"x\n" * 500_000), (200, {"id": "y" * 5_000_000})]
    client = client_of(Scripted(*long))
    for _ in long:
        with pytest.raises(Lost) as caught:
            client.create()
        assert len(str(caught.value)) <= 500
        assert str(caught.value).isprintable()
    monkeypatch.setattr("agentrl_jax.services.client.MAX_ANSWER_BYTES", 1000)
    with pytest.raises(Lost, match="longer than 1000 bytes"):
        client_of(Scripted((200, b" " * 10_000))).create()


DRIPS = {
    "a status line": b"",
    "headers": b"HTTP/1.1 200 OK\r\nX: ",
    "a body": b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n",
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFF\r\n",
}


@pytest.mark.parametrize("what", DRIPS)
def test_a_server_that_drips_is_left_at_the_deadline(what):
    """A byte every 20 ms keeps every single read of the socket short of its own limit."""
    left = threading.Event()

    def drip(listener):
        with listener.accept()[0] as connection, contextlib.suppress(OSError):
            connection.sendall(DRIPS[what])
            for _ in range(1500):
                connection.sendall(b"H" if what == "a status line" else b" ")
                time.sleep(0.02)
        left.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=drip, args=(listener,), daemon=True).start()
        client = ServiceClient(f"http://127.0.0.1:{listener.getsockname()[1]}", COMPILED, seconds=0.25)
        with pytest.raises(Lost, match="no answer within"):
            client.step(0, "a")
        assert left.wait(20)  # long before the 30 s that it would have gone on


def test_a_server_that_is_not_there():
    for host in ("127.0.0.1:9", "a..b:80", f"{'a' * 70}.example:80"):
        client = ServiceClient(f"http://{host}", COMPILED, seconds=0.2)
        assert not client.healthy()
        with pytest.raises(Lost, match="ConnectError" if host[0] == "1" else "create: "):
            client.create()
    client.shut(0)
    with pytest.raises(ServiceError, match=r"/: no answer within 0.2 s \([A-Za-z]+: ") as error:
        client.wait(0.2)
    assert not isinstance(error.value, Lost)  # which would be tried again


def test_a_server_that_starts_late_is_waited_for_and_may_answer_anything(caplog):
    client_of(Scripted((500, {}))).wait(5)
    assert not caplog.records
    address = free_address()

    def start():
        port = int(address.partition(":")[2])
        with http.server.HTTPServer(("127.0.0.1", port), http.server.BaseHTTPRequestHandler) as server:
            server.handle_request()

    threading.Timer(0.3, start).start()
    url = f"http://{address}"
    ServiceClient(url, COMPILED, seconds=5).wait(20)
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == [f"{url}/: no answer"]


def test_addresses_with_the_prefix_of_a_wire_or_without_and_tokens(serve):
    for url in ("", "127.0.0.1:80", "ftp://x", "file:///etc", "http://a/?x=1", "http://a/#b"):
        with pytest.raises(BadValue) as refused:
            ServiceClient(url, COMPILED)
        assert refused.value.key == url
    url = serve(counting()[0], routes_of("maze"))
    for handle, base in enumerate((url, f"{url}/maze", f"{url}/maze/")):
        assert ServiceClient(base, routes_of("maze"), seconds=5).create() == handle
    url = serve(counting()[0], COMPILED, Limits(token="abc"))
    with pytest.raises(ServiceError, match="401"):
        ServiceClient(url, COMPILED, seconds=5).create()
    assert ServiceClient(url, COMPILED, seconds=5, token="abc").create() == 0


@pytest.mark.parametrize(("name", "count"), [("textcraft", 24), ("maze", 3), ("wordle", 3), ("Bandit", 3)])
def test_many_instances_over_http_play_as_those_of_this_process(serve, name, count):
    service, routes = get_service(name), routes_of(name)
    url = serve(service, routes, Limits(instances=count))
    here, there = LocalPool(service), RemotePool(ServiceClient(url, routes, seconds=60))

    def told(pool, item):
        """What is told in an episode of a scripted policy."""
        player, end = service.oracle(item) if service.oracle else service.random(item, 5), time.monotonic() + 60
        lease = pool.open(item, end)
        answers = [lease.first]
        while len(answers) <= 12 and not answers[-1].done:
            answers.append(lease.step(player.act(answers[-1].observation), end))
        lease.leave(good=True)
        return [(answer.observation, answer.reward, answer.score, answer.done) for answer in answers]

    with ThreadPoolExecutor(count) as threads:
        found = list(threads.map(lambda item: told(there, item), range(count)))
    assert found == [told(here, item) for item in range(count)]
    assert min(map(len, found)) > 1
    here.close(), there.close()
