"""`algo.mismatch` replay: which rollouts can be replayed, and what the gradient of replayed values is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from made_up import BASE, GROUP_SIZE, GRPO, KEY, MODEL, ONES, PLAIN, SAID, TRAJECTORY, TURNS, fresh_state, settings

from agentrl_jax.config.algo import Replay
from agentrl_jax.errors import BadValue
from agentrl_jax.learner.replay_logprobs import with_gradient_of
from agentrl_jax.learner.update import update
from agentrl_jax.parallel.shards import Shards

ENGINE = {"max_turns": TURNS, "max_response_tokens": SAID, "group_size": GROUP_SIZE}


@pytest.mark.parametrize(
    ("engine", "key"),
    [
        (None, "mismatch"),
        ({"group_size": 2}, "mismatch"),
        ({"context": "single_turn"}, "mismatch"),
        ({"slots": 64}, "slots"),
        ({"max_turns": TURNS + 1}, "turns"),
    ],
)
def test_a_rollout_of_another_shape_is_refused(engine, key):
    engine = None if engine is None else toy_agent.engine_config(**ENGINE | engine)
    config = BASE.replace(mismatch=Replay(), **GRPO)
    learn = functools.partial(update, model=MODEL, config=config, tx=PLAIN, shards=Shards(), engine=engine)
    with pytest.raises(BadValue) as refused:
        jax.eval_shape(learn, fresh_state(), TRAJECTORY, ONES, KEY, settings())
    assert refused.value.key == key


def test_value_of_one_and_gradient_of_the_other():
    value, source = jnp.float32([-1.0000001, -3e-8]), jnp.float32([-7.3, -2.1])
    out, pull = jax.vjp(lambda v, s: with_gradient_of(v, s) * 2, value, source)
    np.testing.assert_array_equal(out, 2 * value)
    of_value, of_source = pull(jnp.ones(2))
    assert (np.asarray(of_value) == 0).all()
    assert (np.asarray(of_source) == 2).all()
