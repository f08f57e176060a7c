"""What is refused before anything is built, and after it is compiled."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent

from agentrl_jax.errors import UserError
from agentrl_jax.rollout.engine_config import cache_length
from agentrl_jax.rollout.envs.level_splits import LevelSplits, TaskLevels
from agentrl_jax.setup import build, memory
from agentrl_jax.setup.memory import Measured
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


@pytest.fixture
def executed():
    """A measured program with one megabyte of results, and the list of its executions."""
    seen = []

    def program(x):
        jax.debug.callback(lambda: seen.append(1))
        return jnp.zeros((250_000,)) + x

    return Measured("update", jax.jit(program)), seen


def test_a_program_that_does_not_fit_is_not_executed(executed, monkeypatch):
    program, seen = executed
    monkeypatch.setattr(memory, "free_bytes", lambda: 500_000)
    with pytest.raises(UserError, match=r"update needs .* lower algo\.minibatches"):
        program(1.0)
    jax.effects_barrier()
    assert not seen
    monkeypatch.setattr(memory, "free_bytes", lambda: 1_500_000)
    program(1.0)
    jax.effects_barrier()
    assert seen == [1]


@pytest.mark.parametrize("free", [None, 0])
def test_nothing_is_refused_where_it_is_not_known_or_the_program_is_a_part_of_another(executed, monkeypatch, free):
    program, _ = executed
    monkeypatch.setattr(memory, "free_bytes", lambda: free)
    assert (program if free is None else jax.jit(program))(1.0)[0] == 1


def test_what_is_free_here_is_what_the_system_has():
    assert 0 < memory.free_bytes() * jax.local_device_count() <= memory.psutil.virtual_memory().total
