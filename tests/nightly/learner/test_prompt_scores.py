"""Scores of responses and of their thoughts, against forward passes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from made_up import GROUPS
from prompt_scores import BASE, GROUP_SIZE, NOW, PLAYED, check_scores, measured, policy, seen, slowly

from agentrl_jax.rollout.contexts import SINGLE_TURN
from agentrl_jax.text.thought import compile_thought


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
        expected.append(slowly(policy(NOW), prompt, rows[episode])[:inside].sum())
    assert found["collapse/first_turn_conditional_entropy"] == pytest.approx(-np.mean(expected), rel=1e-4)
    silent = trajectory.replace(response=response.replace(length=jnp.minimum(response.length, 1)))
    found = measured(silent, config)
    assert np.isnan(found["collapse/first_turn_mi"])
    assert np.isfinite(found["collapse/first_turn_response_mi"])
