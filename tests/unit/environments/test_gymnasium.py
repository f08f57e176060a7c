import gymnasium
import pytest

from agentrl_jax.environments import gymnasium_adapter
from agentrl_jax.environments.gymnasium_adapter import adapted
from agentrl_jax.environments.loading import load
from agentrl_jax.environments.pool import open_pool
from agentrl_jax.environments.start_check import check_start
from agentrl_jax.errors import BadValue


@pytest.mark.parametrize(("name", "colors"), [("Taxi-v4", True), ("FrozenLake-v1", True), ("CliffWalking-v1", False)])
def test_colors_are_words_where_nothing_else_tells_states_apart(name, colors):
    kind = load(f"gymnasium:{name}")
    assert kind.colors == colors
    env = kind(max_episode_steps=20)
    assert "\x1b" not in env.reset(3)
    assert ("(" in env.reset(3)) == colors
    assert kind.actions == gymnasium_adapter.NAMES[name.partition("-")[0]]


@pytest.mark.parametrize("processes", [0, 1])
def test_an_episode_is_that_of_gymnasium(processes):
    pool = open_pool("gymnasium:FrozenLake-v1", {"is_slippery": False}, processes=processes)
    env = pool.open()
    assert env.reset(0) == env.content(5)
    step = env.step("", ["down", "down", "right", "right", "down", "right", "left"])
    assert (step.reward, step.terminated, step.success) == (1.0, True, True)
    env.reset(0)
    step = env.step("", ["right", "down"])
    assert (step.reward, step.terminated, step.success) == (0.0, True, False)
    env.reset(0)
    assert not env.step("", []).valid
    check_start(pool, (7,), 5)
    pool.close()


def test_a_limit_of_steps_truncates():
    env = load("gymnasium:Taxi-v4")(max_episode_steps=2)
    env.reset(0)
    step = env.step("", ["south"] * 3)
    assert (step.truncated, step.terminated, step.reward) == (True, False, -2.0)
    assert env.reset(1) != env.reset(2)


REFUSED = {
    "CartPole-v1": "does not tell its observations apart",
    "Nope-v0": "Gymnasium cannot make",
    "Pendulum-v1": "expected discrete ones",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_text_or_no_such_actions_is_refused(name):
    with pytest.raises(BadValue, match=REFUSED[name]):
        load(f"gymnasium:{name}")


def test_without_a_limit_one_is_asked_for():
    assert gymnasium.spec("CliffWalking-v1").max_episode_steps is None
    with pytest.raises(BadValue, match="max_episode_steps"):
        load("gymnasium:CliffWalking-v1")()


def test_a_subclass_describes_what_has_no_rendering():
    class Blackjack(adapted("Blackjack-v1")):
        def describe(self, observation):
            return f"{observation[0]} against {observation[1]}"

    env = Blackjack(max_episode_steps=9)
    assert env.reset(3) == "7 against 10"
    assert env.step("", ["stick"]).terminated
