import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
import xla_settings
from toy_rollouts import GROUPED, KEY, forward_logprobs

from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.replay import replay_logprobs


@pytest.fixture(scope="module")
def replay():
    return jax.jit(
        lambda params, *arguments: replay_logprobs(params, toy_agent.MODEL.decoder, GROUPED, *arguments, tasks=2),
        compiler_options=xla_settings.SAME_BITS,
    )


def test_the_replay_has_the_bits_of_the_rollout(compiled, policy, replay):
    number = np.arange(64)
    # Greedy members, whose log-probability is 0, and two temperatures.
    temperature = jnp.asarray(np.select([number % 5 == 0, number % 3 == 0], [0.0, 0.7], 1.0), jnp.float32)
    settings = toy_agent.settings(64, temperature=temperature)
    trajectory, _ = compiled(GROUPED)(policy, KEY, toy_agent.mixed_ids(16, toy_agent.GROUP_SIZE), settings)
    lengths = np.asarray(trajectory.response.length)[np.asarray(trajectory.turn_mask)]
    assert len(np.unique(lengths)) >= 5
    replayed = replay(policy, trajectory, temperature)
    np.testing.assert_array_equal(replayed.view(np.int32), trajectory.response.logprob.view(np.int32))
    assert np.count_nonzero(np.asarray(replayed)[np.asarray(temperature) > 0]) > 64


def test_other_parameters_give_their_own_log_probabilities(policy, batch, replay):
    other, ones = jax.tree.map(lambda x: 0.9 * x, policy), jnp.ones(64)
    rows, expected = forward_logprobs(other, batch[1], FULL, ones)
    replayed = np.asarray(replay(other, batch[1], ones)).reshape(64, -1)
    sampled = np.asarray(rows.response_mask)
    np.testing.assert_allclose(replayed[sampled], np.asarray(expected)[sampled], atol=1e-4)
    assert np.abs(replayed - np.asarray(rows.logprob))[sampled].max() > 0.1


def test_a_record_of_another_shape_is_refused(policy, batch):
    config = toy_agent.engine_config(max_response_tokens=5)
    with pytest.raises(BadValue) as refused:
        replay_logprobs(policy, toy_agent.MODEL.decoder, config, batch[1], jnp.ones(64), tasks=2)
    assert (refused.value.key, refused.value.value) == ("turns", 3)
