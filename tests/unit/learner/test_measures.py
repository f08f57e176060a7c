import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_up import EPISODES, GROUP_SIZE, GROUPS, TRAJECTORY

from agentrl_jax.learner.measures import groups_of, measure
from agentrl_jax.learner.trained_rows import trained_rows
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.returns import RewardRule

RETURNS = jnp.arange(float(EPISODES))


def failing(*episodes):
    failed = TRAJECTORY.turn.failed.at[jnp.array(episodes, int), 0].set(True) if episodes else TRAJECTORY.turn.failed
    return TRAJECTORY.replace(turn=TRAJECTORY.turn.replace(failed=failed))


def test_an_episode_that_is_left_alone_does_not_count():
    found = groups_of(failing(1, 4, 5, 6), RETURNS, GROUP_SIZE)
    expected = np.ones((GROUPS, GROUP_SIZE), bool)
    expected[0, 1] = expected[1] = False
    np.testing.assert_array_equal(found.valid, expected)
    np.testing.assert_array_equal(found.scores, np.arange(EPISODES).reshape(GROUPS, GROUP_SIZE))
    assert groups_of(failing(1), RETURNS, 1).valid.ravel().tolist() == [True, False] + [True] * (EPISODES - 2)


def test_metrics_of_episodes_and_groups():
    same = TRAJECTORY.response.tokens.at[3].set(TRAJECTORY.response.tokens[2])
    lengths = TRAJECTORY.response.length.at[3].set(TRAJECTORY.response.length[2])

    @jax.jit
    def measured(trajectory):
        trajectory = trajectory.replace(response=trajectory.response.replace(tokens=same, length=lengths))
        found = measure(trajectory, groups_of(trajectory, RETURNS, GROUP_SIZE), ("toy",), RewardRule(0.0))
        return {name: x.value for name, x in found.items()}

    def shares(*failed):
        return {name: float(x) for name, x in measured(failing(*failed)).items()}

    found = shares()
    assert found["rollout/repeated_share"] == pytest.approx(2 / EPISODES)
    assert found["rollout/in_group_max"] == pytest.approx(np.arange(3, EPISODES, GROUP_SIZE).mean())
    assert shares(3)["rollout/repeated_share"] == 0.0


def test_rows_to_train_on_are_those_with_tokens_first():
    mask = jnp.array([[0, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 1]], bool)
    position = jnp.array([[4, 5, 6], [2, 3, 1], [1, 1, 1], [2, 1, 7]])
    found = trained_rows(mask, position, 3, Shards())
    assert found.order.tolist() == [1, 3, 0]
    assert found.length.tolist() == [0, 4, 0, 8]
    assert found.tokens.tolist() == [0, 2, 0, 2]
