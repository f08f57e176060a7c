"""Best-of-N: every selector beside a slow computation of what it means."""

import dataclasses
import itertools
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from refusing import refusal

from agentrl_jax import api
from agentrl_jax.config import PromptConfig
from agentrl_jax.environments.kinds import kind_of
from agentrl_jax.evaluate.selectors import best_of_selector, last_values, mean_logprob
from agentrl_jax.evaluate.statistics import best_of, majority_of
from agentrl_jax.models import actor_critic
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.text import tokenizer as tokenizers

EPISODES = 8


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_best_of_is_the_mean_over_all_subsets(k):
    rng = np.random.default_rng(0)
    success = rng.random((6, 5)) < 0.5
    score = rng.integers(0, 3, (6, 5)).astype(float)  # with ties

    def of_subset(solved, scores):
        return np.mean([x for x, y in zip(solved, scores) if y == max(scores)])

    slow = [
        np.mean([of_subset(row[list(part)], of[list(part)]) for part in itertools.combinations(range(5), k)])
        for row, of in zip(success, score)
    ]
    np.testing.assert_allclose(best_of(success, score, k), slow)


def test_the_majority_counts_answers_not_successes():
    success = np.array([[True, False, False, False], [True, True, False, True], [True, True, False, False]])
    given = [["a", "b", "b", "c"], ["x", "x", "", ""], ["", "", "", ""]]
    # By hand: "b" wins in the first; no answer is no vote; without any answer nothing is taken.
    np.testing.assert_array_equal(majority_of(success, given, 4), [0.0, 1.0, 0.0])
    # Blocks of two: a and x are first of their blocks, b comes before c; the last block of x has no answers.
    np.testing.assert_array_equal(majority_of(success, given, 2), [0.5, 0.5, 0.0])


@pytest.fixture(scope="module")
def played(finished):
    """A policy with a critic, the configuration of its run with one task, and episodes."""
    policy = api.load_policy(finished.folder)
    return policy, policy.config.replace(tasks=policy.config.tasks[1:]), api.rollout(policy, EPISODES, task=1)


@pytest.mark.nightly
def test_scores_of_episodes(played):
    policy, config, trajectory = played
    response = trajectory.response
    totals, counts = np.zeros(EPISODES), np.zeros(EPISODES)
    for episode in range(EPISODES):
        for turn in range(trajectory.num_turns[episode]):
            length = response.length[episode, turn]
            totals[episode] += response.logprob[episode, turn, :length].astype(np.float64).sum()
            counts[episode] += length
    np.testing.assert_allclose(mean_logprob(trajectory), totals / counts, rtol=1e-6)
    assert best_of_selector("shortest", policy, config).judge(trajectory) == (-counts).tolist()


@pytest.mark.nightly
def test_the_value_is_the_critics_before_the_last_token(played):
    policy, config, trajectory = played
    rows = [trajectory.prompt[row, : trajectory.prompt_length[row]].tolist() for row in range(EPISODES)]
    for episode, tokens in enumerate(rows):
        for turn in range(trajectory.num_turns[episode]):
            shown, said = trajectory.observation[episode, turn], trajectory.response.tokens[episode, turn]
            tokens += shown[: trajectory.observation_length[episode, turn]].tolist()
            tokens += said[: trajectory.response.length[episode, turn]].tolist()
    last = np.array([[len(row) - 1] for row in rows], np.int32)
    width = last.max() + 1  # nothing reads what follows an episode
    rows = np.array([row + [0] * (width - len(row)) for row in rows], np.int32)
    slow = jax.jit(actor_critic.values, static_argnums=1)(policy.params, policy.model, rows, last)[:, 0]
    assert len(set(np.round(slow, 6).tolist())) > 1
    found = last_values(policy.params, policy.model, trajectory, FULL)
    np.testing.assert_allclose(found, slow, atol=1e-5)
    np.testing.assert_allclose(best_of_selector("value", policy, config).judge(trajectory), found, atol=1e-5)
    without = dataclasses.replace(policy, model=dataclasses.replace(policy.model, critic="none"))
    for name, given in (("value", without), ("majority", policy)):
        refused = refusal(best_of_selector, name, given, config)
        assert (refused.key, refused.value) == ("--selector", name)


def test_answers_of_a_search_are_compared_as_words():
    tokenizer = tokenizers.load_small()
    texts = ["<search> x </search>", "so <answer> The  Eiffel-Tower. </answer>", "<answer>a</answer>", "", "no", ""]
    rows = [tokenizer.encode(text) for text in texts]
    tokens = np.zeros((3, 2, max(map(len, rows))), np.int32)
    for index, row in enumerate(rows):
        tokens[index // 2, index % 2, : len(row)] = row
    length = np.array([*map(len, rows)]).reshape(3, 2)
    trajectory = SimpleNamespace(num_turns=np.array([2, 1, 1]), response=SimpleNamespace(tokens=tokens, length=length))
    served = kind_of("searchqa", "http://127.0.0.1:1")
    config = SimpleNamespace(prompt=PromptConfig(style="chat"), tasks=[SimpleNamespace(env="searchqa")], kinds=[served])
    majority = best_of_selector("majority", SimpleNamespace(tokenizer=tokenizer), config)
    assert majority.judge(trajectory) == ["eiffeltower", "", ""]
