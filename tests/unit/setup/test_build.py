"""Configurations that are refused before anything is built."""

import types

import numpy as np
import pytest
import toy_agent

from agentrl_jax.errors import UserError
from agentrl_jax.rollout.engine_config import cache_length
from agentrl_jax.rollout.envs.level_splits import LevelSplits, TaskLevels
from agentrl_jax.setup import build
from envs_jax.splits import Split

BATCHED_ENV = types.SimpleNamespace(prefix=np.zeros((1, 10)), observation_tokens=5)


@pytest.mark.parametrize(
    ("context", "context_tokens", "more"),
    [("full", 0, 5), ("full", 24, 5), ("single_turn", 0, 0)],
    ids=["whole conversations", "cut", "single turns"],
)
def test_positions_hold_the_final_observation_that_a_critic_reads(context, context_tokens, more):
    engine = toy_agent.engine_config(context=context, context_tokens=context_tokens)
    longest = cache_length(BATCHED_ENV, engine)

    def check(positions, bootstrap):
        build.check_positions(types.SimpleNamespace(max_positions=positions), BATCHED_ENV, engine, bootstrap=bootstrap)

    check(longest, False)
    check(longest + more, True)
    with pytest.raises(UserError, match=f"{longest} tokens, but"):
        check(longest - 1, False)
    with pytest.raises(UserError, match="final observation of 5" if more else f"{longest} tokens, but"):
        check(longest + more - 1, True)


def test_a_level_file_of_test_levels_only_cannot_be_trained_on():
    config = types.SimpleNamespace(tasks=[types.SimpleNamespace(label="mine", levels="panel.txt")])
    test, fixed = np.full(4, Split.TEST), np.array([True, True, True, False])
    build.check_trainable(config, LevelSplits((TaskLevels("too few", test, fixed),)))
    build.check_trainable(config, LevelSplits((TaskLevels("all are drawn", some_fixed=True),)))
    with pytest.raises(UserError, match=r"mine has no level to train on: all levels of panel\.txt"):
        build.check_trainable(config, LevelSplits((TaskLevels("too few", test[:3], fixed[:3]),)))
