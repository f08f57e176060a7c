"""Slow checks of what the quick tests of the same name check."""

import pytest
from replayed import Iteration, assert_exact

from agentrl_jax.config.algo import NoKl


@pytest.fixture(scope="module")
def iteration():
    """Without a reference, which would be replayed too, as it is at night."""
    return Iteration(1, {}, kl=NoKl())


def test_nothing_has_moved_bit_for_bit(iteration):
    """Two gradient steps with learning rate 0, on the half of the groups that the filter keeps."""
    _, metrics = iteration.learn("replay", lr=0.0, critic_lr=0.0)
    assert_exact(metrics)
    assert metrics["rollout/parallel_gap_max"] > 0
    assert metrics["rollout/parallel_bit_equal"] < 1
    assert metrics["actor/grad_norm"] > 0
    assert metrics["update/skipped"] == 0
