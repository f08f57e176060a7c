"""Slow checks of what the quick tests of the same name check."""

from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.environments.compiled import MAX_ACTIONS_PER_RESPONSE, SEPARATOR
from envs_jax import registry


def success(service, policy, items, turns=None):
    """The share of items that a policy solves."""
    solved = 0
    for item in items:
        instance, player = service.make(False), policy(item)
        answer = instance.reset(item)
        for _ in range(turns or service.turns):
            answer = instance.step(player.act(answer.observation))
            if answer.done:
                break
        solved += service.solved(answer)
    return solved / len(items)


def test_the_oracle_on_slippery_ice_is_the_optimal_policy():
    """Which solves half of the levels; shortest paths solve a seventh."""
    assert 0.35 < success(get_service("FrozenLake"), get_service("FrozenLake").oracle, range(80)) < 0.65


def test_random_play_in_babyai_takes_what_is_listed():
    """Uniformly among all names it solves 3 %."""
    service = get_service("BabyAI-GoToRedBall")
    assert success(service, lambda item: service.random(item, 0), range(20)) > 0.4


def test_scripted_policies_use_as_many_actions_a_turn_as_an_agent_may():
    service = get_service("SimpleSokoban")
    budget = registry.spec("SimpleSokoban").max_actions
    assert len(service.random(0, 0).act("").split(SEPARATOR)) == MAX_ACTIONS_PER_RESPONSE
    fewest = budget // MAX_ACTIONS_PER_RESPONSE
    assert success(service, service.oracle, range(8), fewest) == success(service, service.oracle, range(8))
