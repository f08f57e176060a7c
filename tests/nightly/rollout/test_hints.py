"""Rows with and without hints hold the same sampled tokens."""

import jax
import jax.numpy as jnp
import numpy as np
import toy_agent
from hinted_rows import ENV, EPISODES, HINTS, IDS
from toy_rollouts import KEY, forward_logprobs

from agentrl_jax.rollout import engine
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.hints import HintedEnv, with_hints
from agentrl_jax.rollout.packing import pack_trajectories


def test_the_tokens_and_log_probabilities_of_both_views_are_the_same(policy):
    config = toy_agent.engine_config(group_size=1)
    settings = toy_agent.settings(EPISODES)

    @jax.jit
    def play(policy, ids):
        return engine.rollout(policy, toy_agent.MODEL.decoder, HintedEnv(ENV, HINTS), config, KEY, ids, settings)[0]

    shown = play(policy, IDS)
    assert int(shown.num_turns.max()) > 1
    _, first = ENV.reset(KEY, settings, IDS)
    more = shown.observation.shape[2] - first.tokens.shape[1]
    plain = shown.replace(
        prompt=jnp.asarray(ENV.prefix)[IDS.task],
        prompt_length=jnp.asarray(ENV.prefix_length)[IDS.task],
        observation=shown.observation.at[:, 0].set(jnp.pad(first.tokens, ((0, 0), (0, more)))),
        observation_length=shown.observation_length.at[:, 0].set(first.length),
    )
    hinted = with_hints(plain, HINTS)
    rows, logprob = forward_logprobs(policy, hinted, FULL, jnp.ones(EPISODES))
    read = pack_trajectories(shown, FULL)
    size = min(rows.tokens.shape[1], read.tokens.shape[1])
    np.testing.assert_array_equal(rows.tokens[:, :size], read.tokens[:, :size])
    np.testing.assert_array_equal(rows.length, read.length)
    np.testing.assert_array_equal(rows.position, read.position)
    mask = np.asarray(rows.response_mask)
    np.testing.assert_allclose(np.asarray(logprob)[mask], np.asarray(rows.logprob)[mask], atol=1e-4)
    # The student's rows have the same tokens at the same response positions.
    own = pack_trajectories(plain, FULL)
    of_student, of_teacher = (jnp.take_along_axis(x.tokens, x.position, axis=1) for x in (own, rows))
    np.testing.assert_array_equal(np.asarray(of_student)[mask], np.asarray(of_teacher)[mask])
    np.testing.assert_array_equal(rows.length - own.length, HINTS.length)
    for row, (prompt, at, length) in enumerate(zip(np.asarray(plain.prompt), HINTS.at, HINTS.length)):
        text = [*prompt[:at], *HINTS.tokens[row, :length], *prompt[at : plain.prompt_length[row]]]
        assert hinted.prompt[row, : len(text)].tolist() == [int(token) for token in text]
