"""A rollout of windows is replayed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from window_rows import EPISODES, PAIRS, played

from agentrl_jax.rollout.replay import replay_logprobs


@pytest.fixture(scope="module")
def paired(policy):
    return played(policy, PAIRS)


def test_a_replay_has_the_log_probabilities_of_a_window(policy, paired):
    def replay(params, trajectory):
        return replay_logprobs(params, toy_agent.MODEL.decoder, PAIRS, trajectory, jnp.ones(EPISODES), tasks=2)

    np.testing.assert_allclose(jax.jit(replay)(policy, paired), paired.response.logprob, atol=1e-5)
