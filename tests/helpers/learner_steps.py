"""Updates of single turns in several minibatches, and comparisons of them."""

import jax
import jax.numpy as jnp
import numpy as np
from made_up import MODEL, assert_close, fresh_state

from agentrl_jax.rollout.contexts import SINGLE_TURN


def step_of(state, model=MODEL):
    return jax.tree.map(jnp.subtract, state.params, fresh_state(model).params)


ROWS = {"context": SINGLE_TURN, "aggregation": "seq_mean_token_mean", "minibatches": 2, "epochs": 2}
"""Rows of single turns, some of them empty, and four gradient steps, whose minibatches the key orders."""


def same(one, other):
    assert_close(step_of(one[0]), step_of(other[0]))
    for name, value in one[1].items():
        np.testing.assert_allclose(other[1][name], value, rtol=2e-5, atol=2e-6, err_msg=name)
