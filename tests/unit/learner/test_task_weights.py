"""Weights of tasks in the losses, and advantages that are normalized by task."""

import jax
import jax.numpy as jnp
import numpy as np
from made_up import EPISODES, GROUP_SIZE, GROUPS, NO_CRITIC, TRAJECTORY, fresh_state, learn, settings

from agentrl_jax.config.advantages import Grpo

TASK = np.repeat(np.arange(GROUPS) % 2, GROUP_SIZE)
OF_TWO = TRAJECTORY.replace(ids=TRAJECTORY.ids.replace(task=jnp.asarray(TASK, jnp.int32)))
TOKENS = np.asarray(OF_TWO.response.length).sum(axis=1)
OPTIONS = {
    "model": NO_CRITIC,
    "task_names": ("a", "b"),
    "advantage": Grpo(whiten=True),
    "whiten_by": "task",
    "recorded_episodes": EPISODES,
}
START = jax.tree.leaves(fresh_state(NO_CRITIC).params)


def step(*weights, **options):
    """The change of the parameters, which is minus a multiple of the gradient, and the advantages of tokens."""
    numbers = settings(task_weight=np.array(weights or (1.0, 1.0)), lr=1.0)
    state, metrics = learn(OF_TWO, numbers=numbers, **OPTIONS, **options)
    change = [np.asarray(after - before) for after, before in zip(jax.tree.leaves(state.params), START)]
    return np.concatenate([x.ravel() for x in change]), metrics["recorded"]


def assert_near(found, expected):
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.linalg.norm(expected))


def test_the_losses_of_a_task_have_its_weight():
    first, second, both = (step(*weights, weighs_tasks=True)[0] for weights in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)))
    assert np.linalg.norm(first) > 0 < np.linalg.norm(second)
    assert_near(first + second, both)
    assert_near(step(0.5, 3.0, weighs_tasks=True)[0], 0.5 * first + 3.0 * second)
    plain, recorded = step()
    assert_near(both, plain)

    share = TOKENS.sum() / 2 / np.bincount(TASK, TOKENS)
    assert abs(share[0] - share[1]) > 0.01
    balanced = step(1.0, 2.0, weighs_tasks=True, balance_tasks=True)[0]
    assert_near(balanced, share[0] * first + 2.0 * share[1] * second)

    for task in range(2):
        found = np.asarray(recorded.advantage)[task == TASK][np.asarray(recorded.trained)[task == TASK]]
        np.testing.assert_allclose((found.mean(), found.var(ddof=1)), (0.0, 1.0), atol=1e-4)
