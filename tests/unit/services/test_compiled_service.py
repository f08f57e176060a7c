import jax
import jax.numpy as jnp
import pytest

from agentrl_jax.errors import BadValue
from agentrl_jax.service_names import COMPILED_TOO, TEXT_SERVICES
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.environments import compiled
from agentrl_jax.services.environments.remote_only import INSTRUCTIONS
from envs_jax import registry


def test_the_oracle_solves_levels_and_rewards_are_those_of_the_environment():
    service = get_service("FrozenLake-deterministic")
    env, params = registry.make("FrozenLake-deterministic")
    reset, step = jax.jit(env.reset_env), jax.jit(env.step_env)
    solved = 0
    for item in range(6):
        instance = service.make(False)
        answer = instance.reset(item)
        state = reset(jax.random.key(item), params)[1]
        assert answer.observation == env.render(state, params)
        player, total = service.oracle(item), 0.0
        for _ in range(service.turns):
            response = player.act(answer.observation)
            answer = instance.step(response)
            for action in response.split(compiled.SEPARATOR):
                number = jnp.int32(env.actions.index(action))
                _, state, reward, _, _ = step(jax.random.key(0), state, number, params)
                total += float(reward)
            assert answer.observation == env.render(state, params)
            assert answer.score == pytest.approx(total)
            if answer.done:
                break
        solved += service.solved(answer)
    assert solved >= 5


def test_several_actions_unknown_ones_and_one_where_the_possible_ones_change(monkeypatch):
    service = get_service("FrozenLake-deterministic")
    one, other = service.make(False), service.make(False)
    one.reset(3), other.reset(3)
    first = [other.step(name) for name in ("Left", "Up")][-1]
    assert one.step(" left||UP ") == first
    strange = one.step("Jump")
    assert strange.observation == "Actions are Left, Down, Right, Up.\n" + first.observation
    assert (strange.reward, strange.done) == (0.0, False)
    # Those that are possible after the first one are not known yet.
    found = compiled.programs("BabyAI-GoToRedBall")
    assert found.per_response == 1
    assert compiled.SEPARATOR not in get_service("BabyAI-GoToRedBall").instruction
    ice = compiled.programs("FrozenLake-deterministic")._replace(per_response=1)
    monkeypatch.setattr(compiled, "programs", lambda tag: ice)
    one, other = compiled.Compiled("ice"), compiled.Compiled("ice")
    one.reset(3), other.reset(3)
    assert one.step("left||up") == other.step("left")


@pytest.mark.parametrize("per_response", [1, 5])
def test_an_episode_has_the_actions_of_the_compiled_loop(per_response):
    service = get_service("SimpleSokoban")
    instance = service.make(False)
    instance.reset(0)
    budget = registry.spec("SimpleSokoban").max_actions
    ends = [instance.step(compiled.SEPARATOR.join(["Up"] * per_response)).done for _ in range(budget // per_response)]
    assert ends == [False] * (len(ends) - 1) + [True]
    assert len(service.random(0, 0).act("").split(compiled.SEPARATOR)) == compiled.MAX_ACTIONS_PER_RESPONSE


def test_a_bandit_does_not_list_its_arms_in_the_order_of_their_worth():
    instance = get_service("Bandit").make(False)
    assert "Engineer" not in get_service("Bandit").instruction
    texts = [instance.reset(item).observation for item in range(8)]
    assert len({text.index("Engineer") < text.index("Teacher") for text in texts}) == 2
    assert instance.step("Doctor").observation.removesuffix(texts[-1]) == "There is no such action.\n"


def test_slips_follow_from_item_and_actions():
    one, other = (get_service("FrozenLake").make(False) for _ in range(2))
    assert one.reset(2**32 + 5) == other.reset(2**32 + 5)
    assert [one.step("Right") for _ in range(4)] == [other.step("Right") for _ in range(4)]


def test_every_name_is_found_and_others_are_not():
    assert "sciworld" in TEXT_SERVICES
    for name in ("textcraft", "maze", "wordle", "Bandit", *INSTRUCTIONS):
        assert get_service(name).name == name
    missing = [(lambda name=name: get_service(name).make(False), name) for name in {*INSTRUCTIONS} - {*COMPILED_TOO}]
    for make, key in (*missing, (lambda: get_service("textcaft"), "environment")):
        with pytest.raises(BadValue) as refused:
            make()
        assert refused.value.key == key
