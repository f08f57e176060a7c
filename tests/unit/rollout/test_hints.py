"""A policy that is shown hints reads the tokens that the learner scores for a teacher."""

import pytest
import toy_agent
from hinted_rows import ENV, HINTS
from toy_rollouts import KEY

from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.hints import HintedEnv


def test_hints_of_other_rows_are_refused():
    with pytest.raises(BadValue) as refused:
        HintedEnv(ENV, HINTS).reset(KEY, toy_agent.settings(4), toy_agent.mixed_ids(4, 1))
    assert (refused.value.key, refused.value.value) == ("slots", 4)
