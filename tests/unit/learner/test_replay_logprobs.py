"""`algo.mismatch` replay: ratios of exactly 1 and divergences of exactly 0 until the first step."""

import functools

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
import toy_agent
from replayed import KEY, MODEL, RULE, TEMPERATURE, Iteration, settings
from toy_agent import GROUP_SIZE

from agentrl_jax.config.algo import NoKl, Replay
from agentrl_jax.learner.replay_logprobs import with_gradient_of
from agentrl_jax.learner.update import update
from agentrl_jax.parallel.shards import Shards


@pytest.fixture(scope="module")
def iteration():
    """Without a reference, which would be replayed too, as it is at night."""
    return Iteration(1, {}, kl=NoKl())


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (None, "give the rollout's EngineConfig"),
        ({"group_size": 2}, "context and group_size"),
        ({"group_size": GROUP_SIZE, "context": "single_turn"}, "context and group_size"),
        ({"group_size": GROUP_SIZE, "slots": 64}, "64 slots for 32 episodes"),
        ({"group_size": GROUP_SIZE, "max_turns": 2}, "cannot be replayed"),
    ],
)
def test_a_rollout_of_another_shape_is_refused(iteration, engine, words):
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(
            functools.partial(
                update,
                model=MODEL,
                config=RULE.replace(mismatch=Replay()),
                tx=made_up.PLAIN,
                shards=Shards(),
                engine=None if engine is None else toy_agent.engine_config(**engine),
            ),
            *(iteration.state, iteration.trajectory, TEMPERATURE, KEY, settings()),
        )


def test_value_of_one_and_gradient_of_the_other():
    value, source = jnp.float32([-1.0000001, -3e-8]), jnp.float32([-7.3, -2.1])
    out, pull = jax.vjp(lambda v, s: with_gradient_of(v, s) * 2, value, source)
    np.testing.assert_array_equal(out, 2 * value)
    of_value, of_source = pull(jnp.ones(2))
    assert (np.asarray(of_value) == 0).all()
    assert (np.asarray(of_source) == 2).all()
