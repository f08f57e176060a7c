"""Replays of rollouts with refilled slots, of single turns, and through a cache of several blocks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
import xla_settings
from toy_agent import END, GROUP_SIZE
from toy_rollouts import KEY

from agentrl_jax.models import actor_critic, kv_cache
from agentrl_jax.rollout.engine import rollout
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.rollout.prefill import empty_cache
from agentrl_jax.rollout.replay import replay_logprobs
from agentrl_jax.rollout.trajectory import EpisodeIds, Response, Trajectory, unplayed

TEMPERATURE = jnp.asarray(np.select([np.arange(64) % 5 == 0, np.arange(64) % 3 == 0], [0.0, 0.7], 1.0), jnp.float32)
REFILLED = {"group_size": GROUP_SIZE, "slots": 16, "prefill_threshold": 0.3}
SINGLE = {"context": "single_turn", "stop_at_answer": True, "slots": 4, "prefill_threshold": 0.5}


def played_and_replayed(policy, config, episodes):
    """Log-probabilities of a rollout and of its replay, both compiled for the same bits, and the tokens."""
    ids, shape = toy_agent.rows(toy_agent.mixed_ids(16, GROUP_SIZE), np.arange(episodes)), toy_agent.MODEL.decoder
    settings = toy_agent.settings(episodes, temperature=TEMPERATURE[:episodes])

    @functools.partial(jax.jit, compiler_options=xla_settings.SAME_BITS)
    def play(policy, ids, settings):
        return rollout(policy, shape, toy_agent.BATCHED_ENV, config, KEY, ids, settings)[0]

    @functools.partial(jax.jit, compiler_options=xla_settings.SAME_BITS)
    def replay(policy, record, temperature):
        return replay_logprobs(policy, shape, config, record, temperature, tasks=2)

    trajectory = play(policy, ids, settings)
    replayed = replay(policy, trajectory, TEMPERATURE[:episodes])
    return trajectory.response.logprob, replayed, trajectory.response.tokens


def assert_same_bits(a, b):
    np.testing.assert_array_equal(np.asarray(a).view(np.int32), np.asarray(b).view(np.int32))


@pytest.mark.parametrize(("changes", "episodes"), [(REFILLED, 64), (SINGLE, 16)], ids=["refilled", "single"])
def test_the_replay_has_the_bits_of_the_rollout(policy, changes, episodes):
    """With refilled slots and without a turn barrier."""
    logprob, replayed, _ = played_and_replayed(policy, toy_agent.engine_config(**changes), episodes)
    assert_same_bits(replayed, logprob)
    assert np.count_nonzero(np.asarray(replayed)[np.asarray(TEMPERATURE[:episodes]) > 0]) > episodes


def test_a_cache_of_several_blocks_is_replayed_with_the_same_bits(policy, monkeypatch):
    """A rollout reads only as many blocks of the cache as its longest row fills; the tokens are those of one block."""
    config, shape = toy_agent.engine_config(**REFILLED), toy_agent.MODEL.decoder
    _, _, plain = played_and_replayed(policy, config, 64)
    monkeypatch.setattr(kv_cache, "SMALLEST_BLOCK", 4)
    assert len(empty_cache(shape, toy_agent.BATCHED_ENV, config, 1).blocks[0]) > 2
    logprob, replayed, tokens = played_and_replayed(policy, config, 64)
    np.testing.assert_array_equal(tokens, plain)
    assert_same_bits(replayed, logprob)


def test_a_limited_context_after_a_short_first_observation_is_kept_whole():
    """A group stores its first observation once; what it leaves of the limit is for the later ones."""
    episodes, turns, observed, sampled, prefix = 4, 4, 40, 5, 4
    config = toy_agent.engine_config(
        max_turns=turns, max_response_tokens=sampled, group_size=2, context_tokens=150, stop_at_answer=False
    )
    draw = np.random.default_rng(0)
    observation = draw.integers(1, 50, (episodes, turns, observed))
    observation[:, 0] = observation[::2, 0].repeat(2, axis=0)
    length = np.where(np.arange(turns) == 0, 5, np.full((episodes, turns), observed))
    nothing, no_text = jnp.zeros(episodes, jnp.int32), jnp.zeros((episodes, observed), jnp.int32)
    trajectory = Trajectory(
        prompt=jnp.tile(jnp.arange(1, prefix + 1, dtype=jnp.int32), (episodes, 1)),
        prompt_length=nothing + prefix,
        observation=jnp.asarray(observation, jnp.int32),
        observation_length=jnp.asarray(length, jnp.int32),
        response=Response(
            tokens=jnp.asarray(draw.choice(np.setdiff1d(np.arange(50), END), (episodes, turns, sampled)), jnp.int32),
            length=jnp.full((episodes, turns), sampled, jnp.int32),
            logprob=jnp.zeros((episodes, turns, sampled)),
            ended=jnp.zeros((episodes, turns), bool),
        ),
        turn=jax.tree.map(lambda x: x.reshape(episodes, turns, *x.shape[1:]), unplayed(episodes * turns, 0, ())),
        num_turns=nothing + turns,
        ids=EpisodeIds(nothing, nothing, nothing, nothing - 1),
        overflow=nothing > 0,
        truncation=nothing,
        final_observation=no_text,
        final_observation_length=nothing,
    )
    rows, ones = pack_trajectories(trajectory, "full"), jnp.ones(episodes)
    assert int(rows.length.max()) <= config.context_tokens
    decoder, params = toy_agent.MODEL.decoder, toy_agent.talkative_params(0)
    expected = jax.jit(actor_critic.logprobs, static_argnums=1)(
        params, toy_agent.MODEL, rows.tokens, rows.position, ones
    )
    replayed = jax.jit(lambda policy: replay_logprobs(policy, decoder, config, trajectory, ones, 1))(params["policy"])
    np.testing.assert_allclose(np.asarray(replayed).reshape(expected.shape), expected, atol=1e-3)
