"""A policy that is shown hints reads the tokens that the learner scores for a teacher."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from toy_rollouts import KEY, forward_logprobs

from agentrl_jax.errors import BadValue
from agentrl_jax.rollout import engine
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.hints import HintedEnv, with_hints
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.rollout.trajectory import Hints

EPISODES = 8


def with_rest(task, rest):
    """The task, with so many tokens of its prefix behind a hint."""
    return dataclasses.replace(task, prompt=task.prompt.replace(hint_at=len(task.prompt.prefix) - rest))


ENV = CompiledEnv(tasks=tuple(with_rest(task, rest) for task, rest in zip(toy_agent.BATCHED_ENV.tasks, (0, 2))))
IDS = toy_agent.mixed_ids(EPISODES, 1)
HINTS = Hints(
    tokens=jnp.asarray(np.random.default_rng(1).integers(1, 400, (EPISODES, 5)), jnp.int32),
    length=jnp.arange(EPISODES, dtype=jnp.int32) % 6,
    at=jnp.asarray(ENV.hint_at)[IDS.task],
    turns=jnp.ones(EPISODES, jnp.int32),
)


def test_a_hint_is_between_the_parts_of_its_prompt():
    prompt, length = jnp.array([[1, 2, 3, 4], [5, 6, 7, 0], [8, 9, 0, 0]]), jnp.array([4, 3, 2])
    hints = Hints(
        tokens=jnp.array([[20, 21], [22, 0], [0, 0]]),
        length=jnp.array([2, 1, 0]),
        at=jnp.array([3, 1, 2]),
        turns=jnp.ones(3, jnp.int32),
    )
    trajectory = SimpleNamespace(prompt=prompt, prompt_length=length, replace=lambda **now: now)
    found = with_hints(trajectory, hints)
    assert found["prompt_length"].tolist() == [6, 4, 2]
    rows = [row[:known].tolist() for row, known in zip(found["prompt"], (6, 4, 2))]
    assert rows == [[1, 2, 3, 20, 21, 4], [5, 22, 6, 7], [8, 9]]


def test_hints_of_other_rows_are_refused():
    with pytest.raises(BadValue) as refused:
        HintedEnv(ENV, HINTS).reset(KEY, toy_agent.settings(4), toy_agent.mixed_ids(4, 1))
    assert (refused.value.key, refused.value.value) == ("slots", 4)


def test_a_hinted_message_is_the_hint_the_rest_of_the_prefix_and_the_message():
    settings, env = toy_agent.settings(EPISODES), HintedEnv(ENV, HINTS)
    _, plain = jax.jit(ENV.reset)(KEY, settings, IDS)
    _, found = jax.jit(lambda: env.reset(KEY, settings, IDS))()
    for row, task in enumerate(np.asarray(IDS.task)):
        rest = ENV.prefix[task, ENV.hint_at[task] : ENV.prefix_length[task]]
        message = [*HINTS.tokens[row, : HINTS.length[row]], *rest, *plain.tokens[row, : plain.length[row]]]
        assert found.tokens[row, : found.length[row]].tolist() == [*map(int, message)]


@pytest.mark.nightly
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
