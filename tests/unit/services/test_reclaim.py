"""Which instances are closed for new ones when the limit is reached, and what a hung instance costs."""

import contextlib
import threading
import time

import httpx
import pytest
from counting import Counting, counting

from agentrl_jax.services.environment import StepResult
from agentrl_jax.services.protocol import COMPILED, ROUTES
from agentrl_jax.services.server.instances import MAX_PENDING_REQUESTS, Instances, NoRoom, UnknownHandle
from agentrl_jax.services.server.limits import Limits


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def instances(clock, reclaimed=lambda: None, **limits):
    made = counting()[1]
    limits = Limits(**{"instances": 3, "idle_timeout": 0, "reclaim_after": 10.0} | limits)
    return Instances(made, limits, reclaimed=reclaimed, clock=clock), made


def test_a_burst_does_not_take_places_of_live_episodes(clock):
    held, _ = instances(clock)
    kept = [held.create() for _ in range(3)]
    clock.now = 9.9
    with pytest.raises(NoRoom):
        held.create()
    assert held.handles() == kept


def test_the_longest_idle_goes_first_and_counts(clock):
    count = []
    held, made = instances(clock, reclaimed=lambda: count.append(1))
    first, second, third = (held.create() for _ in range(3))
    clock.now = 5
    with held.use(first):
        pass
    clock.now = 12
    with held.use(third):
        pass
    fourth = held.create()
    assert held.handles() == [first, third, fourth]
    with pytest.raises(UnknownHandle), held.use(second):
        pass
    with pytest.raises(NoRoom):
        held.create()
    assert len(count) == made.closed == 1


def test_finished_ones_go_before_idle_ones_at_any_age(clock):
    held, _ = instances(clock)
    idle, finished = held.create(), held.create()
    clock.now = 20
    held.create()
    with held.use(finished) as instance:
        instance.last = StepResult("over", done=True)
    held.create()
    assert finished not in held.handles()
    assert idle in held.handles()


def test_one_whose_request_is_in_flight_stays(clock):
    held, _ = instances(clock, instances=1)
    handle = held.create()
    clock.now = 100
    with held.use(handle) as instance:
        instance.last = StepResult("over", done=True)
        clock.now = 200
        with pytest.raises(NoRoom):
            held.create()
    assert held.create() != handle


def test_zero_keeps_unfinished_ones_for_good(clock):
    held, _ = instances(clock, instances=1, reclaim_after=0.0)
    handle = held.create()
    clock.now = 1e9
    with pytest.raises(NoRoom):
        held.create()
    with held.use(handle) as instance:
        instance.last = StepResult("over", done=True)
    assert held.create() != handle


def test_clients_without_close_play_on_beyond_the_places(serve):
    url = serve(counting()[0], ROUTES["maze"], Limits(instances=4), upstream=True) + "/maze"
    for _ in range(20):
        handle = httpx.post(f"{url}/create").json()["id"]
        assert httpx.post(f"{url}/reset", json={"id": handle, "game": 1}).json()["observation"] == "start 1"
        assert httpx.post(f"{url}/step", json={"id": handle, "action": "end"}).json()["done"]
    lost = httpx.post(f"{url}/step", json={"id": 0, "action": "a"}).json()
    assert lost == {"error": "The id 0 is not valid."}
    metrics = httpx.get(f"{url.removesuffix('/maze')}/metrics").text
    assert "instances_reclaimed_total 16.0" in metrics


def hanging(held, handle):
    """A thread whose request to an instance hangs, and the event that ends it."""
    free, inside = threading.Event(), threading.Event()

    def hang():
        with held.use(handle):
            inside.set()
            free.wait(20)

    thread = threading.Thread(target=hang)
    thread.start()
    assert inside.wait(10)
    return thread, free


def test_requests_behind_one_that_hangs_end_too(clock):
    held, _ = instances(clock, seconds=0.2)
    handle = held.create()

    def wait():
        with pytest.raises(UnknownHandle), held.use(handle):
            pass

    hung, free = hanging(held, handle)
    waiting = [threading.Thread(target=wait) for _ in range(MAX_PENDING_REQUESTS - 1)]
    for thread in waiting:
        thread.start()
    for thread in waiting:
        thread.join(10)
    assert not any(thread.is_alive() for thread in waiting)
    held.abandon(handle)
    assert held.hung == 1
    free.set()
    hung.join(10)
    end = time.monotonic() + 10
    while held.hung and time.monotonic() < end:
        time.sleep(0.01)
    assert held.hung == 0


def test_closing_one_that_hangs_does_not_take_a_thread_nor_free_its_place(clock):
    held, made = instances(clock, instances=1, seconds=0.2)
    handle = held.create()
    hung, free = hanging(held, handle)
    assert held.close(handle)
    assert held.hung == 1
    assert made.closed == 0
    with pytest.raises(NoRoom, match="1 of them hung"):
        held.create()
    assert not held.close(handle)
    free.set()
    hung.join(10)
    end, fresh = time.monotonic() + 10, None
    while fresh is None and time.monotonic() < end:
        with contextlib.suppress(NoRoom):
            fresh = held.create()
    assert fresh not in (None, handle)
    assert made.closed == 1
    assert held.hung == 0


def test_hung_instances_are_counted_and_keep_their_places(serve):
    free = threading.Event()

    class Hung(Counting):
        def step(self, action):
            free.wait(20)
            return super().step(action)

    url = serve(counting(Hung)[0], COMPILED, Limits(instances=1, seconds=0.2, reclaim_after=0.001))
    httpx.post(f"{url}/create")
    httpx.post(f"{url}/reset", json={"id": 0, "data_idx": 0})
    assert httpx.post(f"{url}/step", json={"id": 0, "action": "a"}).status_code == 504
    metrics = httpx.get(f"{url}/metrics").text
    assert "instances_hung 1.0" in metrics
    assert "instances_abandoned_total 1.0" in metrics
    refused = httpx.post(f"{url}/create")
    assert refused.status_code == 503
    assert "1 of them hung" in refused.json()["detail"]
    free.set()
    end = time.monotonic() + 10
    while (made := httpx.post(f"{url}/create")).status_code != 200 and time.monotonic() < end:
        time.sleep(0.05)
    assert made.json() == {"id": 1}
