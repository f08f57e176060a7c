import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from agentrl_jax.algos.kl import KLController
from agentrl_jax.algos.optimizers import Optimizer, optimizer
from agentrl_jax.config.optim import AdamW
from agentrl_jax.learner.state import TrainState, apply_gradients, init_optimizer

PARAMS = {
    "policy": {"query": jnp.array([1.0, 2.0]), "final_norm": jnp.array([3.0]), "query_bias": jnp.array([0.5])},
    "critic": {"head": jnp.array([4.0])},
}
GRADS = {
    "policy": {"query": jnp.array([3.0, 0.0]), "final_norm": jnp.array([4.0]), "query_bias": jnp.array([0.0])},
    "critic": {"head": jnp.array([-2.0])},
}


def state_of(tx, bad_updates=0):
    zero = jnp.int32(0)
    return TrainState(
        params=PARAMS,
        reference=None,
        opt_state=init_optimizer(tx, PARAMS),
        stage=zero,
        step=zero,
        gradient_steps=jnp.int32(7),
        bad_updates=jnp.int32(bad_updates),
        kl=KLController(coef=jnp.float32(1.0)),
    )


def step(tx, grads=GRADS, loss=1.0, *, bad_updates=2, **changes):
    options = {"tokens": jnp.float32(5), "lr": 0.1, "critic_lr": 0.01, "max_grad_norm": 1e9} | changes
    before = state_of(tx, bad_updates)
    state, norms, good = apply_gradients(before, tx, jnp.float32(loss), grads, **options)
    moved = jax.tree.map(lambda new, old: new - old, state.params, PARAMS)
    return state, moved, {name: float(x) for name, x in norms.items()}, bool(good)


@pytest.mark.parametrize(("bound", "policy", "critic"), [(10.0, 1.0, 1.0), (2.5, 0.5, 1.0), (1.0, 0.2, 0.5)])
def test_rates_scale_their_own_part_and_each_norm_is_bounded(bound, policy, critic):
    state, moved, norms, good = step(Optimizer(*optax.sgd(1.0)), max_grad_norm=bound)
    assert (good, int(state.gradient_steps), int(state.bad_updates)) == (True, 8, 0)
    np.testing.assert_allclose(moved["policy"]["final_norm"], [-0.4 * policy], rtol=1e-4)
    np.testing.assert_allclose(moved["critic"]["head"], [0.02 * critic], rtol=1e-4)
    assert norms == {"policy": 5.0, "critic": 2.0}


@pytest.mark.parametrize("bad", [{"loss": jnp.nan}, {"tokens": jnp.float32(0)}, {"grads": "infinite"}])
def test_a_step_that_is_not_finite_or_of_nothing_is_skipped(bad):
    tx = optimizer(AdamW(weight_decay=0.1))
    if bad.get("grads"):
        bad = {"grads": {**GRADS, "critic": {"head": jnp.array([jnp.inf])}}}
    state, moved, _, good = step(tx, **bad)
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(moved))
    jax.tree.map(np.testing.assert_array_equal, state.opt_state, state_of(tx).opt_state)
    assert (good, int(state.gradient_steps), int(state.bad_updates)) == (False, 7, 3)


def test_a_frozen_policy_and_its_moments_stay():
    tx = optimizer(AdamW(weight_decay=0.1))
    state, moved, _, good = step(tx, freeze_policy=jnp.bool_(True))
    assert good
    assert not any(np.asarray(x).any() for x in jax.tree.leaves(moved["policy"]))
    jax.tree.map(np.testing.assert_array_equal, state.opt_state["policy"], state_of(tx).opt_state["policy"])
    free = step(tx)[1]
    np.testing.assert_array_equal(moved["critic"]["head"], free["critic"]["head"])
    assert np.asarray(free["critic"]["head"]).any()


def test_matrices_alone_decay():
    zero = jax.tree.map(jnp.zeros_like, GRADS)
    moved = step(optimizer(AdamW(weight_decay=0.5)), zero)[1]["policy"]
    np.testing.assert_allclose(moved["query"], [-0.05, -0.1], rtol=1e-5)
    assert not np.asarray(moved["final_norm"]).any()
    everything = step(optimizer(AdamW(weight_decay=0.5, decay="all")), zero)[1]["policy"]
    np.testing.assert_allclose(everything["final_norm"], [-0.15], rtol=1e-5)
