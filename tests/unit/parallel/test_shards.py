"""Rows that are divided among devices reach the devices that need them, bit for bit."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as Spec

from agentrl_jax.parallel.mesh import DATA, FSDP, make_mesh
from agentrl_jax.parallel.shards import Shards, maybe_shard_map

ROWS = 12
AXES = (DATA, FSDP)


def rows():
    draw = np.random.default_rng(0)
    wide = draw.standard_normal((ROWS, 2, 3)).astype(np.float32)
    wide[1, 0, 0], wide[5, 1, 2], wide[7, 0, 1] = np.nan, -0.0, np.inf
    return {
        "tokens": draw.integers(-5, 2**30, (ROWS, 4)).astype(np.int32),
        "mask": draw.random((ROWS, 3)) < 0.5,
        "wide": wide,
        "one": draw.standard_normal(ROWS).astype(np.float32),
        "none": None,
    }


def on_devices(function, devices, fsdp, out):
    mesh = make_mesh(devices, fsdp=fsdp)
    shards = Shards(devices, AXES)
    in_specs, out_specs = (Spec(AXES), Spec()), Spec(AXES) if out == "sharded" else Spec()
    replicated = out != "sharded"
    per_device = functools.partial(function, shards)
    return jax.jit(maybe_shard_map(per_device, mesh, in_specs, out_specs, axes=AXES, replicated_results=replicated))


def assert_bits(found, wanted):
    def bits(x):
        x = np.asarray(x)
        return x.view(np.int32) if x.dtype == np.float32 else x

    jax.tree.map(lambda a, b: np.testing.assert_array_equal(bits(a), bits(b)), found, wanted)


MESHES = pytest.mark.parametrize(("devices", "fsdp"), [(1, 1), (2, 1), (4, 2)])


@MESHES
def test_rows_are_fetched_and_gathered_by_number(devices, fsdp):
    """Column r of the numbers, R in a line, is the share of device r; a number may occur twice."""
    numbers = jnp.array([7, 1, 5, 5, 0, 11, 3, 7])
    program = on_devices(lambda shards, tree, number: shards.fetch_rows(tree, number), devices, fsdp, "sharded")
    by_device = np.asarray(numbers).reshape(-1, devices).T.reshape(-1)
    assert_bits(program(rows(), numbers), jax.tree.map(lambda x: x[by_device], rows()))
    numbers = numbers[:5]
    program = on_devices(lambda shards, tree, number: shards.gather_rows(tree, number), devices, fsdp, "replicated")
    assert_bits(program(rows(), numbers), jax.tree.map(lambda x: x[np.asarray(numbers)], rows()))


@MESHES
def test_results_return_to_the_devices_of_their_rows(devices, fsdp):
    """Only the rows with these numbers change."""
    numbers = jnp.array([8, 0, 3, 10])
    new = jnp.arange(8.0).reshape(4, 2)

    def put(shards, old, number):
        return shards.put_rows(old, new, number)

    found = on_devices(put, devices, fsdp, "sharded")(jnp.full((ROWS, 2), -1.0), numbers)
    wanted = np.full((ROWS, 2), -1.0, np.float32)
    wanted[np.asarray(numbers)] = np.asarray(new)
    assert_bits(found, wanted)


@MESHES
def test_blocks_are_gathered_and_cut_again(devices, fsdp):
    tree = {name: x for name, x in rows().items() if name != "wide"}
    gather = on_devices(lambda shards, tree, _: shards.all_gather_blocks(tree), devices, fsdp, "replicated")
    assert_bits(gather(tree, 0), tree)
    cut = on_devices(lambda shards, x, _: shards.block(shards.all_gather_blocks(x)), devices, fsdp, "sharded")
    assert_bits(cut(tree, 0), tree)
