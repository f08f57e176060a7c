"""Supervised steps do not depend on devices nor on how their rows are divided."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as Spec
from made_up import EPISODES, KEY, MODEL, NO_CRITIC, TRAJECTORY, assert_close, fresh_state

from agentrl_jax.algos.optimizers import optimizer
from agentrl_jax.config.optim import AdamW
from agentrl_jax.learner import supervised
from agentrl_jax.learner.gradient import StepShape, gradient
from agentrl_jax.models import actor_critic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.shards import Shards, maybe_shard_map
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.setup.programs import Programs


def test_imitation_lowers_the_loss_whatever_the_devices():
    tx = optimizer(AdamW(b2=0.999, weight_decay=0.0))
    rows, _ = supervised.prepare_examples(pack_trajectories(TRAJECTORY, FULL), 8)
    numbers = (jnp.float32(0.01), jnp.float32(jnp.inf), jnp.float32(1.0))
    program = jax.jit(functools.partial(supervised.imitation_steps, batch=6, model=MODEL, tx=tx, shards=Shards()))

    def run(steps, state):
        return program(state, rows, rows.counts(), KEY, jnp.int32(steps), *numbers)

    start = fresh_state(tx=tx)
    _, second = run(1, start.replace(step=jnp.int32(1)))
    early, first = run(1, start)
    assert second["imitation/loss"] != first["imitation/loss"]  # each step draws its own rows
    assert [int(first[f"imitation/{name}"]) for name in ("skipped", "skipped_in_a_row")] == [0, 0]
    late, mean = run(59, early)
    late, last = run(1, late)
    assert last["imitation/loss"] < 0.8 * first["imitation/loss"]
    assert last["imitation/loss"] < mean["imitation/loss"] < first["imitation/loss"]
    assert int(late.step) == 61
    assert program._cache_size() == 1
    programs = Programs(make_mesh(3))
    divided = programs.shard_rows(rows)
    assert {shard.data.shape[0] for shard in divided.tokens.addressable_shards} == {6}  # 16 rows
    spread, metrics = programs.imitation(MODEL, tx, batch=6)(
        fresh_state(tx=tx), divided, rows.counts(), KEY, jnp.int32(1), *numbers
    )
    assert metrics["imitation/loss"] == pytest.approx(float(first["imitation/loss"]), rel=1e-5)
    assert_close(spread.params, early.params, 3e-3)
    assert int(spread.step) == 1
    # The rate has fallen to 0 after one step.
    stopped, _ = program(early, rows, rows.counts(), KEY, jnp.int32(5), numbers[0], jnp.float32(1), numbers[2])
    assert_close(stopped.params, early.params, 0.0)


def of_pairs(scores, rows):
    """A loss that compares the two rows of a pair: the logistic one of their difference."""
    first, second = jnp.sum(jnp.where(rows.mask, scores.logprob, 0.0), axis=1).reshape(-1, 2).T
    return jnp.sum(jax.nn.softplus(second - first)), ({"wrong": jnp.sum(second > first, dtype=jnp.float32)}, {})


def test_microbatches_lengths_and_devices_part_no_pair():
    rows = pack_trajectories(TRAJECTORY, FULL)
    examples, _ = supervised.prepare_examples(rows, 8)
    lengths = jnp.max(rows.length.reshape(-1, 2), axis=1)
    units = jnp.argsort(-lengths, stable=True)
    state = fresh_state(NO_CRITIC)

    def found(state, examples, units, *, shape, shards):
        options = {"tokens": jnp.float32(4), "model": NO_CRITIC, "shards": shards}
        loss, grads, metrics = gradient(state, examples, units, lengths[units], of_pairs, shape, **options)
        return loss, grads["policy"], metrics["wrong"]

    def directly(params):
        scored = rows.tokens, rows.position, jnp.ones(EPISODES)
        return of_pairs(actor_critic.score_tokens(params, NO_CRITIC, *scored, mask=rows.response_mask), examples)

    (loss, (sums, _)), grads = jax.jit(jax.value_and_grad(directly, has_aux=True))(state.params)
    whole = loss, grads["policy"], sums["wrong"] / 4
    four = functools.partial(found, shape=StepShape(4, 1, unit=2), shards=Shards())
    two = functools.partial(found, shape=StepShape(2, 3, unit=2), shards=Shards(count=2))
    specs, results = (Spec(), Spec("data"), Spec()), (Spec(), Spec(), Spec())
    two = maybe_shard_map(two, make_mesh(2), specs, results, axes=("data",), replicated_results=True)
    for program in (four, two):
        for one, other in zip(*map(jax.tree.leaves, (whole, jax.jit(program)(state, examples, units))), strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-4)
