"""`algo.mismatch` replay on several devices and with bins; its gradient, and what one wrong bit does."""

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
from replayed import Iteration, assert_exact

REFILLED = {"slots": 4, "prefill_threshold": 0.5}


@pytest.fixture(scope="module")
def iteration():
    return Iteration(1, {})


@pytest.mark.parametrize(
    ("devices", "fsdp", "engine"),
    [(1, 1, {}), (2, 1, REFILLED), (4, 1, {"context": "single_turn", **REFILLED}), (4, 2, REFILLED)],
)
def test_nothing_has_moved(devices, fsdp, engine):
    """Rollout and learner distribute rows differently, minibatches are shuffled, and shards are all-gathered."""
    several = Iteration(devices, engine, fsdp=fsdp, epochs=1, minibatches=2)
    _, metrics = several.learn("replay", lr=0.0, critic_lr=0.0, kl_coef=0.3)
    assert_exact(metrics)
    assert "actor/kl" in metrics


def test_the_gradient_is_that_of_the_parallel_pass(iteration):
    moved = iteration.state.replace(
        params=iteration.state.params | {"policy": jax.tree.map(lambda x: 1.02 * x, iteration.state.params["policy"])}
    )
    numbers = {"lr": 0.05, "critic_lr": 0.05, "max_grad_norm": 1e9, "kl_coef": 0.3}
    strict, parallel = (iteration.learn(mode, state=moved, **numbers) for mode in ("replay", "rollout"))
    steps = [jax.tree.map(jnp.subtract, after.params, moved.params) for after, _ in (strict, parallel)]
    made_up.assert_close(*steps, 1e-3)
    for name in ("actor/kl", "actor/ratio_mean", "actor/ppo_kl", "rollout/ref_logprob_mean", "loss"):
        np.testing.assert_allclose(strict[1][name], parallel[1][name], rtol=1e-3, atol=1e-5, err_msg=name)
    assert strict[1]["actor/kl"] > 1e-4
    assert strict[1]["actor/ratio_mean"] != 1.0


def test_one_wrong_bit_is_seen(iteration):
    trajectory = iteration.trajectory
    off = jnp.where(trajectory.response_mask, jnp.nextafter(trajectory.response.logprob, -jnp.inf), 0.0)
    one_turn = jnp.arange(trajectory.response_mask.shape[1])[:, None] == 0
    response = trajectory.response.replace(logprob=jnp.where(one_turn, off, trajectory.response.logprob))
    _, metrics = iteration.learn("replay", trajectory=trajectory.replace(response=response), lr=0.0, critic_lr=0.0)
    assert 0 < metrics["rollout/logprob_bit_equal"] < 1
    assert 0 < metrics["rollout/logprob_gap_mean"] < metrics["rollout/logprob_gap_max"] < 1e-6


def test_the_gap_of_the_parallel_pass(iteration):
    trajectory = iteration.trajectory
    _, metrics = iteration.learn("learner")
    assert 0 < metrics["rollout/logprob_gap_mean"] < metrics["rollout/logprob_gap_max"] < 1e-4
    assert metrics["rollout/logprob_bit_equal"] < 1
    assert "rollout/parallel_gap_max" not in metrics
    shifted = trajectory.response.replace(logprob=trajectory.response.logprob.at[:, 0, 0].add(-0.75))
    _, metrics = iteration.learn("learner", trajectory=trajectory.replace(response=shifted))
    assert metrics["rollout/logprob_gap_max"] == pytest.approx(0.75, abs=1e-4)


def test_packed_rows_are_replayed_on_several_devices():
    rule = {"minibatches": 1, "epochs": 1, "grad_accum_steps": 2}
    plain, packed = (Iteration(2, {}, packing=packing, **rule) for packing in (False, True))
    after, metrics = plain.learn("replay")
    of_bins, in_bins = packed.learn("replay", trajectory=plain.trajectory)
    assert in_bins["rollout/logprob_bit_equal"] == metrics["rollout/logprob_bit_equal"] == 1
    for one, other in zip(*map(jax.tree.leaves, (after.params, of_bins.params))):
        np.testing.assert_allclose(other, one, atol=1e-5)
    assert metrics["actor/grad_norm"] == pytest.approx(in_bins["actor/grad_norm"], rel=1e-4)
    assert any((x != np.asarray(y)).any() for x, y in zip(*map(jax.tree.leaves, (after.params, plain.state.params))))
