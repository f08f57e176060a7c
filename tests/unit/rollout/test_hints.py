"""A policy that is shown hints reads the tokens that the learner scores for a teacher."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from hinted_rows import ENV, EPISODES, HINTS, IDS
from toy_rollouts import KEY

from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.hints import HintedEnv, with_hints
from agentrl_jax.rollout.trajectory import Hints


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
