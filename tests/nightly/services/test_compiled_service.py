"""How much scripted policies solve in environments of `envs_jax` as services."""

from agentrl_jax.services.catalog import get_service


def success(service, policy, items):
    """The share of items that a policy solves."""
    solved = 0
    for item in items:
        instance, player = service.make(False), policy(item)
        answer = instance.reset(item)
        for _ in range(service.turns):
            answer = instance.step(player.act(answer.observation))
            if answer.done:
                break
        solved += service.solved(answer)
    return solved / len(items)


def test_the_shares_that_policies_solve():
    ice, ball = get_service("FrozenLake"), get_service("BabyAI-GoToRedBall")
    assert 0.35 < success(ice, ice.oracle, range(80)) < 0.65  # the optimal policy; shortest paths solve a seventh
    assert success(ball, lambda item: ball.random(item, 0), range(20)) > 0.4  # uniformly among all names 3 %
