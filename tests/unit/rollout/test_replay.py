import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
import xla_settings
from made_up import EPISODES, SAID, TURNS, make_trajectory
from toy_agent import END, GROUP_SIZE
from toy_rollouts import GROUPED, KEY, forward_logprobs

from agentrl_jax.errors import BadValue
from agentrl_jax.models import actor_critic, kv_cache
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.engine import rollout
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.rollout.prefill import empty_cache
from agentrl_jax.rollout.replay import replay_logprobs

TEMPERATURE = jnp.asarray(np.select([np.arange(64) % 5 == 0, np.arange(64) % 3 == 0], [0.0, 0.7], 1.0), jnp.float32)
"""Greedy members, whose log-probability is 0, and two temperatures."""


@pytest.fixture(scope="module")
def replay():
    return jax.jit(lambda *of: replay_logprobs(of[0], toy_agent.MODEL.decoder, GROUPED, *of[1:], tasks=2))


def test_the_replay_has_the_log_probabilities_of_the_rollout(compiled, policy, batch, replay):
    settings = toy_agent.settings(64, temperature=TEMPERATURE)
    trajectory, _ = compiled(GROUPED)(policy, KEY, batch[0], settings)
    lengths = np.asarray(trajectory.response.length)[np.asarray(trajectory.turn_mask)]
    assert len(np.unique(lengths)) >= 5
    replayed = replay(policy, trajectory, TEMPERATURE)
    np.testing.assert_allclose(replayed, trajectory.response.logprob, atol=1e-5)
    assert np.count_nonzero(np.asarray(replayed)[np.asarray(TEMPERATURE) > 0]) > 64


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


REFILLED = {"group_size": GROUP_SIZE, "slots": 16, "prefill_threshold": 0.3}


def played_and_replayed(policy, config):
    """Log-probabilities of a rollout and of its replay, both compiled for the same bits, and the tokens."""
    ids, shape = toy_agent.mixed_ids(16, GROUP_SIZE), toy_agent.MODEL.decoder
    settings = toy_agent.settings(64, temperature=TEMPERATURE)
    jit = functools.partial(jax.jit, compiler_options=xla_settings.SAME_BITS)
    play = jit(lambda policy, *of: rollout(policy, shape, toy_agent.BATCHED_ENV, config, KEY, *of)[0])
    replay = jit(lambda policy, *record: replay_logprobs(policy, shape, config, *record, tasks=2))
    trajectory = play(policy, ids, settings)
    return trajectory.response.logprob, replay(policy, trajectory, TEMPERATURE), trajectory.response.tokens


@pytest.mark.nightly
@pytest.mark.parametrize("options", [{"group_size": GROUP_SIZE}, REFILLED], ids=["barrier", "refilled"])
def test_a_replay_has_the_bits_of_the_rollout_also_in_several_blocks(options, policy, monkeypatch):
    config, shape, found = toy_agent.engine_config(**options), toy_agent.MODEL.decoder, []
    for smallest in (kv_cache.SMALLEST_BLOCK, 4):
        monkeypatch.setattr(kv_cache, "SMALLEST_BLOCK", smallest)
        logprob, replayed, tokens = played_and_replayed(policy, config)
        np.testing.assert_array_equal(np.asarray(replayed).view(np.int32), np.asarray(logprob).view(np.int32))
        found.append(tokens)
    assert len(empty_cache(shape, toy_agent.BATCHED_ENV, config, 1).blocks[0]) > 2
    np.testing.assert_array_equal(*found)


@pytest.mark.nightly
def test_a_limited_context_after_a_short_first_observation_is_kept_whole():
    """A group stores its first observation once; what it leaves of the limit is for the later ones."""
    limits = {"max_turns": TURNS, "max_response_tokens": SAID, "group_size": GROUP_SIZE, "context_tokens": 60}
    config, draw = toy_agent.engine_config(**limits), np.random.default_rng(0)
    made = make_trajectory(seen=40)
    observation = draw.integers(1, 19, made.observation.shape)
    observation[:, 0] = observation[::GROUP_SIZE, 0].repeat(GROUP_SIZE, axis=0)
    trajectory = made.replace(
        observation=jnp.asarray(observation, jnp.int32),
        observation_length=jnp.tile(jnp.array([5, 40]), (EPISODES, 1)),
        response=made.response.replace(
            tokens=jnp.where(made.response.tokens == END, END + 1, made.response.tokens),
            length=jnp.full((EPISODES, TURNS), SAID),
        ),
        num_turns=jnp.full(EPISODES, TURNS),
    )
    rows, ones = pack_trajectories(trajectory, FULL), jnp.ones(EPISODES)
    assert 50 < int(rows.length.max()) <= config.context_tokens
    params, score = toy_agent.talkative_params(0), jax.jit(actor_critic.logprobs, static_argnums=1)
    expected = score(params, toy_agent.MODEL, rows.tokens, rows.position, ones)
    decoder = toy_agent.MODEL.decoder
    replayed = jax.jit(lambda policy: replay_logprobs(policy, decoder, config, trajectory, ones, 1))(params["policy"])
    np.testing.assert_allclose(np.asarray(replayed).reshape(expected.shape), expected, atol=1e-3)
