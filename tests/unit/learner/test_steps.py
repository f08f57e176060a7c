import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as Spec
from made_up import EPISODES, KEY, MODEL, NO_CRITIC, PLAIN, TRAJECTORY, assert_close, fresh_state

from agentrl_jax.errors import BadValue
from agentrl_jax.learner import imitation
from agentrl_jax.learner import state as states
from agentrl_jax.learner.gradient import StepShape, gradient
from agentrl_jax.models import actor_critic
from agentrl_jax.models.lora import LoraConfig
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.shards import Shards, maybe_shard_map
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.setup.programs import Programs


def test_imitation_lowers_the_loss_whatever_the_devices():
    tx = states.optimizer(0.9, 0.999, 0.0)
    rows, _ = imitation.prepare_examples(pack_trajectories(TRAJECTORY, FULL), 8)
    numbers = (jnp.float32(0.01), jnp.float32(jnp.inf), jnp.float32(1.0))
    program = jax.jit(functools.partial(imitation.imitation_steps, batch=6, model=MODEL, tx=tx, shards=Shards()))

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


def test_packed_rows_are_imitated_alike(monkeypatch):
    monkeypatch.setattr(imitation, "LEAST_BIN", 64)
    tx = states.optimizer(0.9, 0.999, 0.0)
    found = pack_trajectories(TRAJECTORY, SINGLE_TURN)
    plain, _ = imitation.prepare_examples(found, 8)
    plain = jax.tree.map(lambda x: x[np.flatnonzero(plain.mask.any(axis=1))], plain)
    packed, number = imitation.prepare_examples(found, len(plain.tokens), packing=True)
    assert number == len(packed.tokens) == packed.mask.any(axis=1).sum() < len(plain.tokens)
    assert imitation.prepare_examples(found, 1, packing=True)[1] == 1
    assert int(packed.mask.sum()) == int(plain.mask.sum())
    with pytest.raises(BadValue):
        imitation.prepare_examples(found.replace(response_mask=jnp.zeros_like(found.response_mask)), 8)

    def everything(rows, size, monkeypatch=monkeypatch):
        monkeypatch.setattr(jax.random, "choice", lambda key, count, shape, p: jnp.arange(count))
        step = functools.partial(imitation.imitation_steps, batch=size, model=MODEL, tx=tx, shards=Shards())
        rates = jnp.float32(0.01), jnp.float32(9), jnp.float32(1.0)
        return jax.jit(step)(fresh_state(tx=tx), rows, rows.counts(), KEY, jnp.int32(1), *rates)

    (one, first), (other, second) = everything(plain, len(plain.tokens)), everything(packed, number)
    ones = jnp.ones(len(plain.tokens))
    score = jax.jit(actor_critic.logprobs, static_argnums=1)
    logprob = score(fresh_state(tx=tx).params, MODEL, plain.tokens, plain.position, ones)
    assert first["imitation/loss"] == pytest.approx(-np.mean(np.asarray(logprob)[np.asarray(plain.mask)]), rel=1e-5)
    assert first["imitation/loss"] == pytest.approx(float(second["imitation/loss"]), rel=1e-5)
    assert first["imitation/grad_norm"] == pytest.approx(float(second["imitation/grad_norm"]), rel=1e-4)
    assert_close(one.params, other.params, 3e-3)


def of_pairs(scores, rows):
    """A loss that compares the two rows of a pair: the logistic one of their difference."""
    first, second = jnp.sum(jnp.where(rows.mask, scores.logprob, 0.0), axis=1).reshape(-1, 2).T
    return jnp.sum(jax.nn.softplus(second - first)), ({"wrong": jnp.sum(second > first, dtype=jnp.float32)}, {})


@pytest.mark.parametrize("shape", [StepShape(2, 3, unit=2), StepShape(4, 1, unit=2)], ids=str)
@pytest.mark.parametrize("devices", [1, 2])
def test_microbatches_lengths_and_devices_part_no_pair(shape, devices):
    rows = pack_trajectories(TRAJECTORY, FULL)
    examples, _ = imitation.prepare_examples(rows, 8)
    lengths = jnp.max(rows.length.reshape(-1, 2), axis=1)
    units = jnp.argsort(-lengths, stable=True)
    state = fresh_state(NO_CRITIC)

    def found(state, examples, units, *, shape, shards):
        options = {"tokens": jnp.float32(4), "model": NO_CRITIC, "shards": shards}
        loss, grads, metrics = gradient(state, examples, units, lengths[units], of_pairs, shape, **options)
        return loss, grads["policy"], metrics["wrong"]

    whole = jax.jit(functools.partial(found, shape=StepShape(unit=2), shards=Shards()))(state, examples, units)
    scores = actor_critic.score_tokens(
        *(state.params, NO_CRITIC, rows.tokens, rows.position, jnp.ones(EPISODES)), mask=rows.response_mask
    )
    assert float(whole[0]) == pytest.approx(float(of_pairs(scores, examples)[0]), rel=1e-5)
    spread = functools.partial(found, shape=shape, shards=Shards(count=devices))
    if devices > 1:
        specs = (Spec(), Spec("data"), Spec())
        spread = maybe_shard_map(
            spread, make_mesh(devices), specs, (Spec(), Spec(), Spec()), axes=("data",), replicated_results=True
        )
    for one, other in zip(
        jax.tree.leaves(whole), jax.tree.leaves(jax.jit(spread)(state, examples, units)), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-4)


def test_packing_would_part_pairs():
    with pytest.raises(BadValue) as refused:
        StepShape(packing=True, unit=2)
    assert refused.value.key == "algo.packing"


def test_the_reference_of_an_adapter_is_the_base_with_it_off():
    decoder = MODEL.decoder
    model = actor_critic.ActorCritic(decoder=decoder, critic="none", lora=LoraConfig(rank=2, alpha=4.0))
    state = states.init_state(KEY, model, PLAIN, reference=True)
    chex.assert_trees_all_equal_structs(state.reference, state.params["policy"])
    kept = sum(x.size for x in jax.tree.leaves(state.reference))
    of_matrices = decoder.num_layers * sum(2 * sum(decoder.layer_shapes()[name]) for name in model.lora.targets)
    assert kept == of_matrices
    rows = pack_trajectories(TRAJECTORY, FULL)
    moved = state.replace(params=jax.tree.map(lambda x: x + 0.1, state.params))
    ones = jnp.ones(rows.tokens.shape[0])

    @functools.partial(jax.jit, static_argnums=1)
    def scores(params, model):
        return actor_critic.logprobs(params, model, rows.tokens, rows.position, ones)

    off = scores({"policy": state.frozen_params}, dataclasses.replace(model, lora=None))
    np.testing.assert_array_equal(scores(moved.merged_params({"policy": moved.reference}), model), off)
    assert np.any(scores(moved.merged_params(), model) != off)


@pytest.mark.parametrize(
    "changes",
    [{"critic": "separate"}, {"critic": "shared", "lora": LoraConfig(rank=2, alpha=4.0)}],
    ids=["decoder", "adapters"],
)
def test_norms_and_biases_do_not_decay(changes):
    """A stacked norm has two axes, like a matrix."""
    shape = dataclasses.replace(MODEL.decoder, qkv_bias=True, output_bias=True, mlp_bias=True, qk_norm=True)
    params = actor_critic.init_params(KEY, actor_critic.ActorCritic(decoder=shape, **changes))
    decaying = jax.tree.leaves_with_path(states.decays(params))
    found = {jax.tree_util.keystr(path, simple=True, separator="/"): bool(leaf) for path, leaf in decaying}
    assert found == {name: not ("norm" in name or "bias" in name) for name in found}
    assert {"critic/bias", "critic/head"} <= found.keys()
