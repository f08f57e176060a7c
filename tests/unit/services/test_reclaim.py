"""Which instances are closed for new ones when the limit is reached, and what a hung instance costs."""

import concurrent.futures
import contextlib
import threading
import types

import pytest
from counting import counting, wait_until

from agentrl_jax.services.environment import StepResult
from agentrl_jax.services.server.instances import MAX_PENDING_REQUESTS, Instances, NoRoom, UnknownHandle
from agentrl_jax.services.server.limits import Limits


@pytest.fixture
def clock():
    return types.SimpleNamespace(now=0.0)


def instances(clock, reclaimed=lambda: None, **limits):
    made = counting()[1]
    limits = Limits(**{"instances": 3, "idle_timeout": 0, "reclaim_after": 10.0} | limits)
    return Instances(made, limits, reclaimed=reclaimed, clock=lambda: clock.now), made


def finish(held, handle):
    with held.use(handle) as instance:
        instance.last = StepResult("over", done=True)


def test_the_longest_idle_goes_first_and_counts(clock):
    count = []
    held, made = instances(clock, reclaimed=lambda: count.append(1))
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
    assert len(count) == made.closed == 1


def test_finished_ones_go_before_idle_ones_at_any_age(clock):
    held, _ = instances(clock)
    idle, finished = held.create(), held.create()
    clock.now = 20
    young = held.create()
    finish(held, finished)
    fresh = held.create()
    assert held.handles() == [idle, young, fresh]


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
    handle, clock.now = held.create(), 1e9
    with pytest.raises(NoRoom):
        held.create()
    finish(held, handle)
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


def test_requests_behind_one_that_hangs_end_too(clock):
    held, _ = instances(clock, seconds=0.2)
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


def test_closing_one_that_hangs_does_not_take_a_thread_nor_free_its_place(clock):
    held, made = instances(clock, instances=1, seconds=0.2)
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
