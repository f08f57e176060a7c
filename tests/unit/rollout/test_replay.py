"""A replay gives the log-probabilities of the rollout bit for bit, and those of other parameters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
import xla_settings
from toy_agent import END, GROUP_SIZE

from agentrl_jax.models import actor_critic, kv_cache
from agentrl_jax.rollout.engine import rollout
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.rollout.prefill import empty_cache
from agentrl_jax.rollout.replay import replay_logprobs
from agentrl_jax.rollout.trajectory import EpisodeIds, Response, Trajectory, unplayed

KEY = jax.random.key(7)
# Greedy members, whose log-probability is 0, and two temperatures.
TEMPERATURE = jnp.asarray(
    np.where(np.arange(64) % 5 == 0, 0.0, np.where(np.arange(64) % 3 == 0, 0.7, 1.0)), jnp.float32
)
WHOLE = {"group_size": GROUP_SIZE}
REFILLED = {"group_size": GROUP_SIZE, "slots": 16, "prefill_threshold": 0.3}
SINGLE = {"context": "single_turn", "stop_at_answer": True, "slots": 4, "prefill_threshold": 0.5}


@pytest.fixture(scope="module")
def replay():
    """Function (params, config, trajectory, temperature) -> log-probabilities, compiled once per configuration."""

    @functools.cache
    def program(config):
        return jax.jit(
            lambda *arguments: replay_logprobs(arguments[0], toy_agent.MODEL.decoder, config, *arguments[1:], tasks=2),
            compiler_options=xla_settings.SAME_BITS,
        )

    return lambda params, config, *arguments: program(config)(params, *arguments)


def bits(x):
    return np.asarray(x).view(np.int32)


@pytest.mark.parametrize(
    ("changes", "episodes"),
    [(WHOLE, 64), pytest.param(REFILLED, 64, marks=pytest.mark.slow), pytest.param(SINGLE, 16, marks=pytest.mark.slow)],
    ids=["whole", "refilled", "single"],
)
def test_the_replay_has_the_bits_of_the_rollout(compiled, policy, replay, changes, episodes):
    """Ragged responses, shared prefixes, refilled slots, with and without a turn barrier, several temperatures."""
    config, temperature = toy_agent.engine_config(**changes), TEMPERATURE[:episodes]
    ids = toy_agent.rows(toy_agent.mixed_ids(16, GROUP_SIZE), np.arange(episodes))
    settings = toy_agent.settings(episodes, temperature=temperature)
    trajectory, _ = compiled(config, same_bits=True)(policy, KEY, ids, settings)
    lengths = np.asarray(trajectory.response.length)[np.asarray(trajectory.turn_mask)]
    assert len(np.unique(lengths)) >= (3 if config.stop_at_answer else 5)
    replayed = replay(policy, config, trajectory, temperature)
    np.testing.assert_array_equal(bits(replayed), bits(trajectory.response.logprob))
    assert np.count_nonzero(np.asarray(replayed)[np.asarray(TEMPERATURE[:episodes]) > 0]) > episodes


def test_other_parameters_give_their_own_log_probabilities(compiled, policy, replay):
    """Against the parallel forward pass, for parameters other than those of the rollout."""
    config = toy_agent.engine_config(**WHOLE)
    ids, ones = toy_agent.mixed_ids(16, GROUP_SIZE), jnp.ones(64)
    trajectory, _ = compiled(config, same_bits=True)(policy, KEY, ids, toy_agent.settings(64))
    other = jax.tree.map(lambda x: 0.9 * x, policy)
    rows = pack_trajectories(trajectory, "full")
    expected = actor_critic.logprobs({"policy": other}, toy_agent.MODEL, rows.tokens, rows.position, ones)
    replayed = np.asarray(replay(other, config, trajectory, ones)).reshape(64, -1)
    sampled = np.asarray(rows.response_mask)
    np.testing.assert_allclose(replayed[sampled], np.asarray(expected)[sampled], atol=1e-4)
    assert np.abs(replayed - np.asarray(rows.logprob))[sampled].max() > 0.1


@pytest.mark.slow
def test_a_cache_of_several_blocks_is_replayed_with_the_same_bits(compiled, policy, monkeypatch):
    """A rollout reads only as many blocks of the cache as its longest row fills; the tokens are those of one block."""
    ids = toy_agent.mixed_ids(16, GROUP_SIZE)
    plain, _ = compiled(toy_agent.engine_config(**REFILLED), same_bits=True)(policy, KEY, ids, toy_agent.settings(64))
    monkeypatch.setattr(kv_cache, "SMALLEST_BLOCK", 4)
    config, shape = toy_agent.engine_config(**REFILLED), toy_agent.MODEL.decoder

    @functools.partial(jax.jit, compiler_options=xla_settings.SAME_BITS)
    def play(policy, ids, settings):
        return rollout(policy, shape, toy_agent.BATCHED_ENV, config, KEY, ids, settings)[0]

    @functools.partial(jax.jit, compiler_options=xla_settings.SAME_BITS)
    def replay(policy, record, temperature):
        return replay_logprobs(policy, shape, config, record, temperature, tasks=2)

    assert len(empty_cache(shape, toy_agent.BATCHED_ENV, config, 1).blocks[0]) > 2
    trajectory = play(policy, ids, toy_agent.settings(64))
    np.testing.assert_array_equal(trajectory.response.tokens, plain.response.tokens)
    replayed = replay(policy, trajectory, jnp.ones(64))
    np.testing.assert_array_equal(bits(replayed), bits(trajectory.response.logprob))


def test_a_rollout_without_turns_is_replayed_as_nothing(compiled, policy, replay):
    config, ids = toy_agent.engine_config(**WHOLE), toy_agent.mixed_ids(16, GROUP_SIZE)
    trajectory, _ = compiled(config, same_bits=True)(policy, KEY, ids, toy_agent.settings(64, horizon=jnp.int32(0)))
    assert not np.asarray(replay(policy, config, trajectory, jnp.ones(64))).any()


def test_a_record_of_another_shape_is_refused(policy, batch):
    config = toy_agent.engine_config(max_response_tokens=5)
    with pytest.raises(
        ValueError, match="3 turns with responses of 7 tokens cannot be replayed by an engine of 3 turns"
    ):
        replay_logprobs(policy, toy_agent.MODEL.decoder, config, batch[1], jnp.ones(64), tasks=2)


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
    expected = actor_critic.logprobs(params, toy_agent.MODEL, rows.tokens, rows.position, ones)
    replayed = jax.jit(lambda policy: replay_logprobs(policy, decoder, config, trajectory, ones, 1))(params["policy"])
    np.testing.assert_allclose(np.asarray(replayed).reshape(expected.shape), expected, atol=1e-3)
