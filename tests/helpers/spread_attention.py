"""Attention with the positions of a row on several devices: checks against the plain form on one."""

import functools

import chex
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as Spec
from plain_attention import plain_attention, random_inputs, random_segments, value_and_gradients

from agentrl_jax.models import attention_kernels, block_attention, row_attention
from agentrl_jax.models.sequence_attention import sequence_attention, shard_positions
from agentrl_jax.parallel import hlo

MESH = jax.make_mesh((2, 4), ("data", "sequence"), axis_types=(AxisType.Auto,) * 2)
ROWS = 4


def on_devices(function, mesh=MESH, axes=frozenset(MESH.axis_names)):

    def of_device(query, key, value, *segments):
        pieces = [shard_positions(x, "sequence", axis=axis) for x, axis in ((query, 1), (key, 2), (value, 2))]
        mixed = function(*pieces, *segments)
        # A sum of the devices' disjoint shares, whose result counts as the same on all of them.
        positions = shard_positions(jnp.arange(query.shape[1])[None], "sequence")[0]
        return jax.lax.psum(jnp.zeros_like(query).at[:, positions].set(mixed), "sequence")

    return jax.shard_map(of_device, mesh=mesh, in_specs=Spec("data"), out_specs=Spec("data"), axis_names=axes)


def check_positions(monkeypatch, window, packed):
    monkeypatch.setattr(block_attention, "BLOCK", 8)
    inputs = random_inputs(ROWS, 80, 80)
    segments = (random_segments(ROWS, 80),) if packed else ()

    def spread(*arrays):
        ids = arrays[3] if packed else None
        return sequence_attention(*arrays[:3], axis_name="sequence", window=window, segment_ids=ids)

    plain = functools.partial(plain_attention, window=window, segment_ids=segments[0] if segments else None)
    forms = (lambda *x: on_devices(spread)(*x, *segments), plain)
    results = (jax.jit(functools.partial(value_and_gradients, form))(*inputs) for form in forms)
    chex.assert_trees_all_close(*results, atol=2e-5, rtol=2e-5)


def check_branches(monkeypatch, heads, kv_heads, implementation):
    """Values and gradients on two devices that share the heads, where they can share those of keys and where not."""
    interpreted = functools.partial(attention_kernels.attend_splash, interpret=True)
    monkeypatch.setattr(row_attention, "attend_splash", interpreted)
    mesh = jax.make_mesh((2, 2, 2), ("data", "sequence", "tensor"), axis_types=(AxisType.Auto,) * 3)
    inputs = random_inputs(ROWS, 80, 80, heads=heads, kv_heads=kv_heads, head_dim=64)
    options = {"window": 30, "implementation": implementation}

    def spread(query, key, value, segments):
        return sequence_attention(query, key, value, axis_name="sequence", segment_ids=segments, **options)

    def sharded(query, *keys, segment_ids):
        query = jax.lax.with_sharding_constraint(query, NamedSharding(mesh, Spec(None, None, "tensor")))
        return on_devices(spread, mesh, {"data", "sequence"})(query, *keys, segment_ids)

    segments = random_segments(ROWS, 80)
    plain = functools.partial(plain_attention, window=30)
    forms = (functools.partial(form, segment_ids=segments) for form in (sharded, plain))
    one, other = (jax.jit(functools.partial(value_and_gradients, form)).lower(*inputs).compile() for form in forms)
    of_branches = [line for line in one.as_text().splitlines() if "/cond/branch_" in line]
    assert of_branches
    assert not [line for line in of_branches if any(f" {name}" in line for name in hlo.COLLECTIVES)]
    chex.assert_trees_all_close(one(*inputs), other(*inputs), atol=3e-5, rtol=2e-5)
