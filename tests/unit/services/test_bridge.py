import threading
import time
from unittest import mock

import pytest
from counting import Counting, counting
from serving import running

from agentrl_jax.services import bridge, pools
from agentrl_jax.services.bridge import BridgeConfig, BridgedEnvironment, Differs
from agentrl_jax.services.client import Lost, ServiceClient, ServiceError
from agentrl_jax.services.environment import StepResult
from agentrl_jax.services.environments.textcraft.env import SERVICE as TEXTCRAFT
from agentrl_jax.services.protocol import COMPILED
from agentrl_jax.services.screenshots import SECONDS
from agentrl_jax.services.server.app import create_app
from agentrl_jax.setup.served_task import score_rule

ITEMS = (3, 7, 11)
PLANKS = ("Action: get 1 acacia logs", "Action: craft 4 acacia planks using 1 acacia logs")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(bridge, "FIRST_PAUSE", 0.01)


class Shaky:
    """An instance pool that loses instances on command: `losses` holds pending (episode step, times)."""

    def __init__(self, pool, losses):
        self.pool, self.losses, self.left = pool, dict(losses), []

    def open(self, item, deadline):
        self.lose("open")
        return ShakyLease(self, self.pool.open(item, deadline))

    def lose(self, at):
        if self.losses.get(at, 0):
            self.losses[at] -= 1
            raise Lost("gone")


class ShakyLease:
    def __init__(self, pool, lease):
        self.pool, self.lease, self.first, self.steps = pool, lease, lease.first, 0

    def step(self, action, deadline):
        self.steps += 1
        self.pool.lose(self.steps)
        return self.lease.step(action, deadline)

    def leave(self, *, good):
        self.pool.left.append(good)
        self.lease.leave(good=good)


def bridged(losses=(), kind=Counting, **config):
    service, _ = counting(kind)
    pool = Shaky(pools.LocalPool(service), losses)
    config = {"items": ITEMS, "seconds": 5.0} | config
    return BridgedEnvironment(service, pool, BridgeConfig(**config)), pool


def crafting(**config):
    return BridgedEnvironment(TEXTCRAFT, pools.LocalPool(TEXTCRAFT), BridgeConfig(items=(0,), **config))


def play(env, actions=("a", "b", "end")):
    first = env.reset(1)
    steps = [env.step(action, ()) for action in actions]
    env.close()
    return [first, *(step.observation for step in steps)], steps


@pytest.mark.parametrize("losses", [{}, {1: 1}, {2: 2}, {3: 1}, {1: 1, 2: 1, 3: 1}, {"open": 2}, {"open": 1, 3: 2}])
def test_lost_instances_are_replaced_and_nothing_is_seen_of_it(losses):
    env, pool = bridged(losses)
    texts, steps = play(env)
    assert texts == ["start 7", "8 a", "9 b", "10 end"]
    ends = [(step.reward, step.terminated, step.success) for step in steps]
    assert ends == [(0, False, False), (0, False, False), (1, True, True)]
    assert sum(step.info["retries"] for step in steps) == sum(losses.values())
    assert steps[0].info["retries"] == losses.get("open", 0) + losses.get(1, 0)
    assert pool.left.count(True) == 1
    assert not any(pool.losses.values())


class Moody(Counting):
    """Every instance but the first starts counting at another number."""

    def reset(self, item):
        answer = super().reset(item)
        self.number += type(self).opened - 1
        return answer


def test_what_ends_an_episode():
    for (env, pool), action, error, message, left in (
        (bridged({2: 9}, retries=2), "b", Lost, "gone", 3),
        (bridged({2: 1}, kind=Moody), "b", Differs, r"9 a.*8 a", 2),  # not passed off as the same episode
        (bridged(), "fail", Lost, "RuntimeError: told to fail", 4),
    ):
        env.reset(1), env.step("a", ())
        with pytest.raises(error, match=message):
            env.step(action, ())
        env.close()
        assert pool.left == [False] * left


def test_what_a_turn_is_worth():
    class Scored(Counting):
        answers = (StepResult("", 1.0, 0.25), StepResult("", 0.0, -0.25), StepResult("", 0.5, 0.5, True))

        def step(self, action):
            return self.answers[int(action)]

    for rule, worth in (("sum", [1, 0, 0.5]), ("last", [0.25, -0.5, 0.75]), ("max", [0.25, 0, 0.25])):
        env, _ = bridged(kind=Scored, score=rule, scale=2.0)
        assert [step.reward for step in play(env, ("0", "1", "2"))[1]] == [2 * value for value in worth]
    # AgentGym's todo lowers the reward in its last step, when what was reached is not what was asked for.
    assert [score_rule(name) for name in ("textcraft", "sciworld", "todo")] == ["sum", "max", "last"]


def test_progress_is_paid_beside_and_responses_that_cannot_be_sent_are_answered_here():
    plain, paid = crafting(), crafting(progress=0.5, tells_progress=True)
    assert plain.reset(0) == paid.reset(0)
    steps = [(plain.step(action, ()), paid.step(action, ())) for action in PLANKS]
    assert [(one.reward, other.reward) for one, other in steps] == [(0.0, 0.25), (1.0, 1.25)]
    assert [(one.info.get("progress"), other.info["progress"]) for one, other in steps] == [(None, 0.5)] * 2
    assert [one.observation for one, _ in steps] == [other.observation for _, other in steps]
    env = crafting()
    env.reset(0)
    twice = env.step("Action: inventory\nAction: inventory", ())
    assert twice.observation.startswith("Error: Only one 'Action'")
    nothing = env.step("I wonder.", ())
    assert nothing.observation == "Could not execute "
    assert [twice.valid, nothing.valid, env.step(PLANKS[0], ()).valid] == [False, False, True]


def test_instances_are_used_again_and_forgotten_ones_replaced(serve):
    service, made = counting()
    client = ServiceClient(serve(service, COMPILED), COMPILED, seconds=5)
    pool = pools.RemotePool(client)
    for _ in range(3):
        assert play(BridgedEnvironment(service, pool, BridgeConfig(items=ITEMS)))[0][0] == "start 7"
    assert made.opened == 1
    client.shut(0)
    texts, steps = play(BridgedEnvironment(service, pool, BridgeConfig(items=ITEMS)))
    assert (texts[-1], steps[0].info["retries"], made.opened) == ("10 end", 0, 2)
    pool.close()
    assert made.closed == 2


def test_a_server_that_never_comes_back_ends_the_episode_in_time():
    pool = pools.RemotePool(ServiceClient("http://127.0.0.1:9", COMPILED, seconds=5))
    env = BridgedEnvironment(counting()[0], pool, BridgeConfig(items=ITEMS, seconds=0.5))
    end = time.monotonic() + 5
    with pytest.raises(ServiceError, match=r"127\.0\.0\.1:9"):
        env.reset(0)
    assert time.monotonic() < end


def test_an_instance_that_is_given_up_while_it_works_is_not_used_again():
    env, pool = bridged()
    env.reset(0)
    thread = threading.Thread(target=lambda: env.step("sleep 0.3", ()))
    thread.start()
    time.sleep(0.1)
    env.close()
    thread.join()
    assert pool.left == [False]


def test_a_new_server_that_gives_old_handles_again_shows():
    service, _ = counting()
    config = BridgeConfig(items=ITEMS, seconds=20)
    with running(create_app(service, COMPILED)) as url:
        pool = pools.RemotePool(ServiceClient(url, COMPILED, seconds=5))
        envs = [BridgedEnvironment(service, pool, config) for _ in range(3)]
        for number, env in enumerate(envs):
            env.reset(number)
            env.step("a", ())
        envs[2].close()  # its handle is free, and stale with the others
    with running(create_app(service, COMPILED), int(url.rpartition(":")[2])):
        for number in (1, 0):
            step = envs[number].step("b", ())
            assert step.observation == f"{ITEMS[number] + 2} b"
            assert step.info["retries"] >= 1
        fresh = BridgedEnvironment(service, pool, config)
        assert fresh.reset(2) == f"start {ITEMS[2]}"
        assert [env.step("c", ()).observation for env in (*envs[:2], fresh)] == ["6 c", "10 c", "12 c"]


def test_a_slow_server_does_not_cost_the_free_instances():
    def reset(handle, item, deadline):
        time.sleep(max(0.0, deadline - time.monotonic()))
        raise Lost("no answer")

    slow = mock.Mock(url="here", reset=reset)
    pool = pools.RemotePool(slow)
    for handle in range(100, 150):
        pool.keep(handle, 0)
    with pytest.raises(Lost):
        pool.open(0, time.monotonic() + 0.1)
    time.sleep(0.2)
    assert slow.shut.call_count == 1


@pytest.mark.parametrize("seconds", [3.0, 60.0])
def test_a_screenshot_has_the_time_that_is_left_of_a_turn(monkeypatch, seconds):
    """And at most `SECONDS` of it; a response without an action has one too."""
    asked = []

    def take(turn, ask):
        asked.append((turn, ask() - time.monotonic()))

    kept = mock.Mock(take=take)
    monkeypatch.setattr(pools._LocalLease, "screenshot", lambda lease, deadline: deadline)
    play(crafting(seconds=seconds, screenshots=lambda item: kept), ("Action: inventory", "nothing"))
    assert [turn for turn, _ in asked] == [0, 1, 2]
    assert all(0 < left <= min(seconds, SECONDS) for _, left in asked)
    kept.finish.assert_called_once_with()
