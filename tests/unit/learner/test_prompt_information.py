import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from made_up import GROUPS, TRAJECTORY, TURNS
from prompt_scores import BASE, GROUP_SIZE, PARAMS, check_scores, measured, samples, seen, slowly

from agentrl_jax.learner import prompt_information as dependence
from agentrl_jax.rollout.contexts import SINGLE_TURN
from agentrl_jax.text.thought import compile_thought

FIRST = np.repeat(np.arange(GROUPS) * GROUP_SIZE, GROUP_SIZE)
PLAYED = TRAJECTORY.replace(
    observation=TRAJECTORY.observation[FIRST],
    observation_length=jnp.where(TRAJECTORY.turn_mask, jnp.maximum(TRAJECTORY.observation_length[FIRST], 1), 0),
)
"""The members of a group begin with the same observation."""


def test_samples_are_balanced_and_uniform():
    first, _ = samples(PLAYED, dataclasses.replace(BASE, pairs=9))[0]
    chex.assert_shape(first.episode, (8,))
    np.testing.assert_array_equal(np.bincount(first.episode // GROUP_SIZE), np.full(GROUPS, 2))
    assert len(set(first.episode.tolist())) == 8
    np.testing.assert_array_equal(first.episode // GROUP_SIZE, first.prompt_episode[first.own] // GROUP_SIZE)
    few, _ = samples(PLAYED, dataclasses.replace(BASE, pairs=3))[0]
    assert len(set((few.episode // GROUP_SIZE).tolist())) == 3
    keys = jax.random.split(jax.random.key(0), 400)
    draw = jax.jit(dependence.first_turns, static_argnums=2)
    valid = jnp.isin(jnp.arange(16), jnp.array([3, 4, 9, 15]))
    assert set(draw(valid, keys[0], dataclasses.replace(BASE, group_size=2, pairs=4)).episode.tolist()) == {3, 4, 9, 15}
    assert len(draw(valid, keys[0], dataclasses.replace(BASE, group_size=2, pairs=8)).prompt_turn) == 8
    drawn = jax.jit(jax.vmap(lambda key: dependence.any_turns(PLAYED.turn_mask, key, BASE)))(keys)
    assert np.all(drawn.turn < PLAYED.num_turns[drawn.episode])
    number = int(np.argmax(PLAYED.num_turns))
    turns = np.bincount(np.asarray(drawn.turn)[np.asarray(drawn.episode) == number], minlength=TURNS)
    # An episode is expected 400 x 9 / 16 times, and each of its two turns half of that.
    assert turns.sum() == pytest.approx(225, abs=45)
    np.testing.assert_allclose(turns, turns.sum() / TURNS, atol=30)


def test_responses_and_their_thoughts_have_the_scores_of_forward_passes():
    texts = ("Up</think>Up", "</think>Down", "UpUpUp", "DownUp</think>")
    rows = [toy_agent.vocabulary(texts[i % len(texts)]) for i in range(GROUPS * GROUP_SIZE)]
    tokens, length = (np.zeros(x.shape, np.int32) for x in (PLAYED.response.tokens, PLAYED.response.length))
    for episode, row in enumerate(rows):
        tokens[episode, :, : len(row)] = row
        length[episode] = np.where(PLAYED.turn_mask[episode], len(row), 0)
    response = PLAYED.response.replace(tokens=jnp.asarray(tokens), length=jnp.asarray(length))
    trajectory = jax.tree.map(np.asarray, PLAYED.replace(response=response))
    thought = compile_thought(toy_agent.TOKENIZER, forced=True)
    config = dataclasses.replace(BASE, pairs=GROUPS * GROUP_SIZE, thought=thought)
    check_scores(trajectory, config)
    found = measured(trajectory, config)
    spoken = np.isin(np.arange(GROUPS * GROUP_SIZE) % len(texts), [0, 3])
    turns = np.asarray(trajectory.num_turns)
    assert found["collapse/valid_thinking_rate"] == pytest.approx(np.sum(turns * spoken) / np.sum(turns))
    assert found["collapse/first_turn_pairs"] == GROUPS * GROUP_SIZE / 2
    assert found["collapse/first_turn_response_pairs"] == GROUPS * GROUP_SIZE
    expected = []
    for episode in np.flatnonzero(spoken):
        inside = len(toy_agent.vocabulary(texts[episode % len(texts)].split("</think>")[0]))
        prompt = seen(trajectory, episode, 0, SINGLE_TURN)
        expected.append(slowly(PARAMS["policy"], prompt, rows[episode])[:inside].sum())
    assert found["collapse/first_turn_conditional_entropy"] == pytest.approx(-np.mean(expected), rel=1e-4)
    silent = trajectory.replace(response=response.replace(length=jnp.minimum(response.length, 1)))
    found = measured(silent, config)
    assert np.isnan(found["collapse/first_turn_mi"])
    assert np.isfinite(found["collapse/first_turn_response_mi"])


def test_what_is_not_asked_for_is_not_measured():
    def names(config, reference):
        policy, temperature = PARAMS["policy"], jnp.ones(len(PLAYED.num_turns))
        scorer = functools.partial(dependence.score, model=toy_agent.SHARED.decoder)
        measure = functools.partial(dependence.measure, config=config, scorer=scorer)
        return jax.eval_shape(measure, policy, reference, PLAYED, temperature, jax.random.key(0)).keys()

    plain = names(BASE, None)
    thought = dataclasses.replace(BASE, thought=compile_thought(toy_agent.TOKENIZER, forced=True))
    assert names(BASE, PARAMS["policy"]) - plain == {"actor/kl"}
    more = names(thought, None) - plain
    assert "collapse/valid_thinking_rate" in more
    assert not any("response_" in name for name in more)
