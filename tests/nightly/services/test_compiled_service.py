"""How much scripted policies solve in environments of `envs_jax` as services."""

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


def test_the_shares_that_policies_solve():
    ice, ball = get_service("FrozenLake"), get_service("BabyAI-GoToRedBall")
    assert 0.35 < success(ice, ice.oracle, range(80)) < 0.65  # the optimal policy; shortest paths solve a seventh
    assert success(ball, lambda item: ball.random(item, 0), range(20)) > 0.4  # uniformly among all names 3 %


def test_scripted_policies_use_as_many_actions_a_turn_as_an_agent_may():
    service = get_service("SimpleSokoban")
    assert len(service.random(0, 0).act("").split(SEPARATOR)) == MAX_ACTIONS_PER_RESPONSE
    fewest = registry.spec("SimpleSokoban").max_actions // MAX_ACTIONS_PER_RESPONSE
    assert success(service, service.oracle, range(8), fewest) == success(service, service.oracle, range(8))
