"""Scores of tokens where each device computes the logits of a part of the vocabulary; and what no device holds."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.algos import kl
from agentrl_jax.models import actor_critic, token_scores
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.models.lora import LoraConfig
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.parallel import hlo, layout
from agentrl_jax.parallel.fsdp import Gather
from agentrl_jax.parallel.mesh import DATA, FSDP, SEQUENCE, make_mesh
from agentrl_jax.parallel.shards import Shards, maybe_shard_map

ROWS, LENGTH, RESPONSES = 8, 12, 6
TIED = DecoderConfig(vocab_size=24, num_layers=1, embed_dim=8, num_heads=2, num_kv_heads=1, head_dim=4, mlp_width=12)
UNTIED = dataclasses.replace(TIED, tied_embeddings=False)
ODD = dataclasses.replace(UNTIED, vocab_size=23)
"""A vocabulary that no number of devices divides."""
AXES = (DATA, FSDP, SEQUENCE)


def drawn(tree, seed):
    draw = np.random.default_rng(seed)
    return jax.tree.map(lambda x: jnp.asarray(x + 0.3 * draw.standard_normal(x.shape), x.dtype), tree)


@functools.cache
def batch(packed):
    draw = np.random.default_rng(3)
    tokens = draw.integers(0, 23, (ROWS, LENGTH))
    position = np.sort(np.stack([draw.permutation(np.arange(1, LENGTH))[:RESPONSES] for _ in range(ROWS)]))
    mask = draw.random((ROWS, RESPONSES)) < 0.6
    mask[0] = mask[-1] = False  # rows without any, so that devices skip different chunks
    temperature = draw.uniform(0.7, 1.3, (ROWS, RESPONSES))  # of each token, as packed rows have it
    segment = np.where(np.arange(LENGTH) < draw.integers(3, 9, (ROWS, 1)), 1, 2) if packed else None
    weights = draw.standard_normal((3, ROWS, RESPONSES))
    found = (tokens, position, mask, temperature, weights, segment)
    return jax.tree.map(lambda x: jnp.asarray(x, {"f": jnp.float32, "i": jnp.int32}.get(x.dtype.kind, x.dtype)), found)


def scored(params, reference, shards, model, rows):
    """(scores of all tokens, gradient of a weighted sum of the scores), inside or outside of `jax.shard_map`."""
    tokens, position, mask, temperature, weights, segment = rows
    weights = weights.swapaxes(0, 1)
    local = shards.shard_rows((tokens, position, mask, temperature, weights, segment))

    def loss(params):
        tokens, position, mask, temperature, weights, segment = local
        scores = actor_critic.score_tokens(
            {**params, "frozen": frozen} if frozen else params,
            model,
            tokens,
            position,
            temperature,
            (compared, kl.full),
            mask,
            segment,
        )
        found = [jnp.where(mask, x, 0.0) for x in (scores.logprob, scores.entropy, scores.distance)]
        return sum(jnp.sum(x * weights[:, i]) for i, x in enumerate(found)), found

    frozen, compared = shards.varying((params.get("frozen"), reference))
    trained = {name: x for name, x in params.items() if name != "frozen"}
    grads, found = jax.grad(loss, has_aux=True)(shards.varying(trained))
    return shards.all_gather_rows(found), shards.sum_of_gradients(grads, trained)


def on_mesh(model, rows, fsdp, sequence, tensor):
    """The jitted function of 4 devices, and its arguments as they are sharded."""
    mesh = make_mesh(4, fsdp=fsdp, sequence=sequence, tensor=tensor)
    shards = Shards(4 // (sequence * tensor), (DATA, FSDP), (SEQUENCE,) if sequence > 1 else ())
    spread = dataclasses.replace(
        model,
        gather=Gather(model.decoder.embed_dim, model.decoder.head_dim),
        sequence_axis=SEQUENCE if sequence > 1 else "",
    )
    arguments = arguments_of(model)
    placed = layout.shardings(arguments, mesh, layout.UPDATE, head_dim=4)
    specs = layout.specs_over(placed, AXES)
    function = maybe_shard_map(
        lambda params, reference, rows: scored(params, reference, shards, spread, rows),
        mesh,
        (*specs, Spec()),
        (Spec(), {name: spec for name, spec in specs[0].items() if name != "frozen"}),
        axes=AXES,
        replicated_results=True,
    )
    return jax.jit(function), (*jax.device_put(arguments, placed), rows)


def arguments_of(model):
    params = drawn(actor_critic.init_params(jax.random.key(0), model), 1)
    return params, drawn(params["policy"], 2)


@pytest.mark.parametrize(
    ("name", "fsdp", "sequence", "tensor"),
    [
        *(("tied", 4, 1, 1), ("tied", 2, 1, 2), ("untied", 2, 1, 2), ("untied", 2, 2, 1), ("odd", 4, 1, 1)),
        *(("odd", 2, 1, 2), ("adapters", 4, 1, 1), ("packed", 2, 2, 1)),
    ],
)
def test_scores_and_gradients_are_those_of_one_device(name, fsdp, sequence, tensor, monkeypatch):
    monkeypatch.setattr(token_scores, "LOGITS_AT_ONCE", 4 * 24)
    shape = {"untied": UNTIED, "odd": ODD}.get(name, TIED)
    lora = LoraConfig(rank=2, alpha=3.0) if name == "adapters" else None
    model = ActorCritic(decoder=shape, critic="none" if lora else "separate", lora=lora)
    rows = batch(name == "packed")
    wanted = scored(*arguments_of(model), Shards(), model, rows)
    function, arguments = on_mesh(model, rows, fsdp, sequence, tensor)
    found = function(*arguments)
    assert all(np.asarray(x).any() for x in wanted[0])
    for (path, x), y in zip(jax.tree_util.tree_leaves_with_path(wanted), jax.tree.leaves(found)):
        np.testing.assert_allclose(y, x, rtol=2e-4, atol=2e-5, err_msg=jax.tree_util.keystr(path))


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("shape", [TIED, UNTIED], ids=["tied", "untied"])
def test_no_device_has_the_whole_embedding_or_output_matrix(shape, tensor):
    """Collectives have at most a device's share of these largest matrices, or a block of another for `tensor`."""
    model = ActorCritic(decoder=dataclasses.replace(shape, vocab_size=4096, mlp_width=2048), critic="none")
    function, arguments = on_mesh(model, batch(packed=False), 4 // tensor, 1, tensor)
    text = function.lower(*arguments).compile().as_text()
    sizes = [found.size for found in hlo.operations(text, hlo.COLLECTIVES)]
    assert 0 < max(sizes) <= max(4096 / 4, 2048 / tensor) * shape.embed_dim * 4
