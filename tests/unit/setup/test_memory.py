"""A program that does not fit in free memory is refused after it is compiled and before it is executed."""

import jax
import jax.numpy as jnp
import pytest

from agentrl_jax.errors import UserError
from agentrl_jax.setup import memory
from agentrl_jax.setup.memory import Measured


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
