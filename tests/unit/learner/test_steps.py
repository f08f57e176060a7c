import dataclasses
import functools
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as Spec
from made_up import EPISODES, KEY, MODEL, NO_CRITIC, PLAIN, TRAJECTORY, assert_close, fresh_state

from agentrl_jax.algos.optimizers import decays, optimizer
from agentrl_jax.config.optim import AdamW
from agentrl_jax.config.stages import DpoStage
from agentrl_jax.errors import BadValue
from agentrl_jax.learner import state as states
from agentrl_jax.learner import supervised
from agentrl_jax.learner.gradient import StepShape, gradient
from agentrl_jax.models import actor_critic
from agentrl_jax.models.lora import LoraConfig
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.shards import Shards, maybe_shard_map
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.setup.programs import Programs


@pytest.mark.nightly
def test_packed_rows_are_imitated_alike(monkeypatch):
    monkeypatch.setattr(supervised, "LEAST_BIN", 64)
    found = pack_trajectories(TRAJECTORY, SINGLE_TURN)
    plain, _ = supervised.prepare_examples(found, 8)
    plain = jax.tree.map(lambda x: x[np.flatnonzero(plain.mask.any(axis=1))], plain)
    packed, number = supervised.prepare_examples(found, len(plain.tokens), packing=True)
    assert number == len(packed.tokens) == packed.mask.any(axis=1).sum() < len(plain.tokens)
    assert supervised.prepare_examples(found, 1, packing=True)[1] == 1
    assert int(packed.mask.sum()) == int(plain.mask.sum())
    with pytest.raises(BadValue):
        supervised.prepare_examples(found.replace(response_mask=jnp.zeros_like(found.response_mask)), 8)

    monkeypatch.setattr(jax.random, "choice", lambda key, count, shape, p: jnp.arange(count))
    step = functools.partial(supervised.imitation_steps, batch=number, model=MODEL, tx=PLAIN, shards=Shards())
    numbers = (jnp.float32(x) for x in (0.01, jnp.inf, 1e9))
    start = fresh_state()
    found, metrics = jax.jit(step)(start, packed, packed.counts(), KEY, jnp.int32(1), *numbers)

    @jax.jit
    def directly(policy):
        def loss(policy):
            ones = jnp.ones(len(plain.tokens))
            logprob = actor_critic.logprobs(
                start.params | {"policy": policy}, MODEL, plain.tokens, plain.position, ones
            )
            return -jnp.sum(jnp.where(plain.mask, logprob, 0.0)) / jnp.sum(plain.mask)

        return jax.value_and_grad(loss)(policy)

    loss, slope = directly(start.params["policy"])
    assert metrics["imitation/loss"] == pytest.approx(float(loss), rel=1e-5)
    assert metrics["imitation/grad_norm"] == pytest.approx(float(optax.global_norm(slope)), rel=1e-4)
    moved = jax.tree.map(lambda x, y: x - 0.01 * y, start.params["policy"], slope)
    assert_close(found.params["policy"], moved, 1e-5)


def test_a_step_of_imitation_draws_its_own_rows_and_none_without_tokens(monkeypatch):
    monkeypatch.setattr(supervised, "_steps", lambda state, rows, steps, take, *_, **__: (state, {"take": take}))
    rows, _ = supervised.prepare_examples(pack_trajectories(TRAJECTORY, SINGLE_TURN), 8)
    counts = np.asarray(rows.counts())
    options = {"batch": 64, "model": MODEL, "tx": PLAIN, "shards": Shards()}
    _, found = supervised.imitation_steps(
        fresh_state(), rows, rows.counts(), KEY, jnp.int32(1), *map(jnp.float32, (0.01, 10, 1)), **options
    )
    first, second = (found["imitation/take"](0, fresh_state().replace(step=jnp.int32(step))) for step in (0, 5))
    assert 0 in counts
    for rows_of_step, tokens, _ in (first, second):
        assert counts[np.asarray(rows_of_step)].min() > 0
        assert int(tokens) == counts[np.asarray(rows_of_step)].sum()
    assert first[0].tolist() != second[0].tolist()
    assert [float(step[2]) for step in (first, second)] == pytest.approx([0.01, 0.005])


def test_packing_would_part_pairs():
    with pytest.raises(BadValue) as refused:
        StepShape(packing=True, unit=2)
    assert refused.value.key == "algo.packing"


@pytest.mark.nightly
def test_the_reference_of_an_adapter_is_the_base_with_it_off():
    decoder = MODEL.decoder
    model = actor_critic.ActorCritic(decoder=decoder, critic="none", lora=LoraConfig(rank=2, alpha=4.0))
    state = states.init_state(KEY, model, PLAIN, states.Kept(reference=True))
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
    decaying = jax.tree.leaves_with_path(decays(params))
    found = {jax.tree_util.keystr(path, simple=True, separator="/"): bool(leaf) for path, leaf in decaying}
    assert found == {name: not ("norm" in name or "bias" in name) for name in found}
    assert {"critic/bias", "critic/head"} <= found.keys()


def data_program(batch, pairs=None, model=NO_CRITIC, devices=1):
    programs = Programs(make_mesh(devices))
    program = programs.data_steps(model, PLAIN, batch=batch, pairs=pairs)

    def run(rows, weights, rate=0.1, steps=1, state=None):
        rates = np.broadcast_to(rate, len(weights))
        arrays = (jnp.array(x, jnp.float32) for x in (weights, rates))
        state = fresh_state(model) if state is None else jax.tree.map(jnp.copy, state)
        return program(state, programs.shard_rows(rows), *arrays, jnp.int32(steps), jnp.float32(1e9))

    return run


def test_steps_on_data_follow_their_order_and_train_what_is_marked():
    rows, _ = supervised.prepare_examples(pack_trajectories(TRAJECTORY, FULL), 8)
    rows = jax.tree.map(lambda x: np.array(x[:12]), rows)
    counts = rows.mask.reshape(3, -1).sum(axis=1)
    run = data_program(4)
    found, metrics = run(rows, counts)

    @jax.jit
    def directly(policy, tokens):
        params = fresh_state(NO_CRITIC).params | {"policy": policy}
        logprob = actor_critic.logprobs(params, NO_CRITIC, tokens, rows.position[:4], jnp.ones(4))
        return -jnp.sum(jnp.where(rows.mask[:4], logprob, 0.0)) / counts[0]

    start = fresh_state(NO_CRITIC).params["policy"]
    loss, slope = jax.value_and_grad(directly)(start, rows.tokens[:4])
    assert metrics["loss"] == pytest.approx(float(loss), rel=1e-5)
    assert_close(found.params["policy"], jax.tree.map(lambda x, y: x - 0.1 * y, start, slope), 1e-5)
    assert (int(found.step), int(metrics["skipped"])) == (1, 0)
    # Two steps of a dispatch, the second on its own rows, by its own rate, as in a dispatch that begins with them.
    two, both = run(rows, counts, rate=[0.1, 0.03, 0.1], steps=2)
    later, after = run(jax.tree.map(lambda x: np.roll(x, -4, axis=0), rows), np.roll(counts, -1), 0.03, state=found)
    assert (int(two.step), float(both["loss"]) * 2) == (2, pytest.approx(float(metrics["loss"] + after["loss"])))
    assert_close(two.params, later.params, 1e-6)
    # A step of zeros is skipped, and said to be.
    empty = jax.tree.map(np.copy, rows)
    empty.mask[:4] = False
    same, skipped = run(empty, [0, *counts[1:]])
    assert (int(skipped["skipped"]), int(same.gradient_steps)) == (1, 0)
    assert_close(same.params["policy"], start, 0.0)
    # Missing rows change nothing, and neither do devices.
    fewer = jax.tree.map(np.copy, rows)
    fewer.mask[3], fewer.tokens[3] = False, 0
    left = fewer.mask[:4].sum()
    alone, known = data_program(3)(jax.tree.map(lambda x: x[:9], rows), [left, 1, 1])
    for devices in (1, 3):
        spread, other = data_program(4, devices=devices)(fewer, [left, *counts[1:]])
        assert float(other["loss"]) == pytest.approx(float(known["loss"]), rel=1e-5)
        assert_close(spread.params, alone.params, 1e-5)


def test_pairs_begin_with_a_margin_of_zero_whatever_the_devices():
    rows, _ = supervised.prepare_examples(pack_trajectories(TRAJECTORY, FULL), 8)
    rows = jax.tree.map(lambda x: np.array(x[:12]), rows)
    logprobs = Programs(make_mesh(1)).row_logprobs(NO_CRITIC)
    rows = rows.replace(reference=np.asarray(logprobs(fresh_state(NO_CRITIC).params, rows)))
    moved = {}
    for batch, devices, config in (
        (6, 1, DpoStage()),
        (6, 3, DpoStage()),
        (2, 1, DpoStage()),
        (6, 1, DpoStage(per_token=True)),
        (6, 1, DpoStage(loss="hinge", nll_coef=0.5)),
    ):
        state, metrics = data_program(batch, config, devices=devices)(rows, [batch] * (6 // batch))
        assert float(metrics["margin"]) == pytest.approx(0, abs=2e-5)
        nll = -np.mean(rows.reference[::2] / rows.mask[::2].sum(axis=1)) if config.nll_coef else 0
        start = {"sigmoid": np.log(2), "hinge": 1.0}[config.loss]
        assert float(metrics["loss"]) == pytest.approx(start + config.nll_coef * nll, rel=1e-5)
        moved[batch, devices, config.loss, config.per_token] = state.params["policy"]
    whole, spread, part, per_token, _ = moved.values()
    assert_close(whole, spread, 1e-5)
    with pytest.raises(AssertionError):
        assert_close(whole, part, 1e-4)  # its first pairs alone
    with pytest.raises(AssertionError):
        assert_close(whole, per_token, 1e-4)
    # Two equal answers say nothing.
    even = jax.tree.map(lambda x: np.repeat(x[::2], 2, axis=0), rows)
    state, metrics = data_program(6, DpoStage())(even, [6])
    assert_close(state.params["policy"], fresh_state(NO_CRITIC).params["policy"], 1e-6)
    assert float(metrics["grad_norm"]) < 1e-5


@pytest.mark.parametrize("per_token", [False, True])
def test_pairs_are_compared_by_sums_or_by_means(per_token):
    rows, _ = supervised.prepare_examples(pack_trajectories(TRAJECTORY, FULL), 8)
    rows = jax.tree.map(lambda x: np.array(x[:6]), rows)
    draw = np.random.default_rng(0)
    logprob, reference = draw.uniform(-3, 0, rows.mask.shape).astype(np.float32), draw.uniform(-9, 0, 6)
    loss = supervised._pair_loss(DpoStage(per_token=per_token, beta=0.5), jnp.float32(3))
    found, _ = loss(SimpleNamespace(logprob=logprob), rows.replace(reference=jnp.float32(reference)))
    tokens = rows.mask.sum(axis=1)
    assert len({*tokens}) > 2
    gained = (np.where(rows.mask, logprob, 0.0).sum(axis=1) - reference) / (tokens if per_token else 1)
    assert float(found) == pytest.approx(np.mean(np.log1p(np.exp(-0.5 * (gained[::2] - gained[1::2])))), rel=1e-5)


@pytest.mark.nightly
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


@pytest.mark.nightly
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
