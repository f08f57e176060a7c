import functools
import importlib.util
from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, SingleDeviceSharding
from jax.sharding import PartitionSpec as Spec
from plain_attention import (  # noqa: F401
    PACKED,
    compared,
    of_queries,
    plain_attention,
    random_inputs,
    random_segments,
    small_blocks,
    value_and_gradients,
)
from spread_attention import check_branches, check_positions

from agentrl_jax.models import attention, row_attention
from agentrl_jax.models import heads as axes
from agentrl_jax.models.attention import Segment
from agentrl_jax.models.kv_cache import Opening, SharedPrefix
from agentrl_jax.models.quantized import quantize
from agentrl_jax.parallel.topology import described_devices


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.parametrize("window", [0, 1, 3, jnp.int32(2)])
def test_a_query_sees_itself_and_the_latest_before_it(window):
    keys, queries = np.array([[0, 1, 2, 3, 4], [9, 5, 6, 7, 8]]), np.array([[3, 0], [7, 9]])
    size = int(window) or 100
    expected = [[[q - size < k <= q for k in row] for q in of_row] for row, of_row in zip(keys, queries)]
    np.testing.assert_array_equal(attention.visible(jnp.asarray(keys), jnp.asarray(queries), window), expected)


@pytest.mark.parametrize(("chunk", "filled"), [(1, 2), (5, 1), (5, 4)])
def test_only_used_blocks_are_read(chunk, filled, monkeypatch):
    """Six rows, a part of their keys shared by all and the rest in four blocks; unused ones are NaN."""
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", 2 * 5 * 4 * 47)
    query = normal(0, 6, chunk, 4, 8)
    shared, own = [normal(i, 2, 7, 8) for i in (1, 2)], [normal(i, 6, 2, 40, 8) for i in (3, 4)]
    seen = jnp.arange(40) <= (10 * filled - chunk - jnp.arange(6))[:, None, None] + jnp.arange(chunk)[:, None]
    key, value = (jnp.concatenate([jnp.broadcast_to(x, (6, *x.shape)), y], axis=2) for x, y in zip(shared, own))
    of_shared = jnp.arange(7) < jnp.array([7, 3, 1, 0, 5, 6])[:, None, None]
    of_shared = jnp.broadcast_to(of_shared, (6, chunk, 7))
    whole = jax.jit(attention.attend)(query, key, value, jnp.concatenate([of_shared, seen], axis=2))
    parts = zip(*(jnp.split(x, 4, axis=axis) for x, axis in ((own[0], 2), (own[1], 2), (seen, 2))))
    segments = [Segment(*shared, of_shared)]
    for number, (key, value, mask) in enumerate(parts):
        used = jnp.bool(number < filled)
        key, value = (jnp.where(used, x, jnp.nan) for x in (key, value))
        segments.append(Segment(key, value, mask, used if number else None))
    # A function of its own, or the program of another limit would be found.
    mixed = jax.jit(lambda *x: attention.attend_cached(*x))(query, segments)
    np.testing.assert_allclose(mixed, whole, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "integers", "chunk"),
    [(1, False, 5), (2, True, 5), (3, False, 5), (12, True, 1)],
    ids=["a row", "no divisor of a group", "a group", "all"],
)
def test_rows_of_a_group_read_the_same_keys(rows, chunk, integers, monkeypatch):
    """Twelve rows in groups of three that share seven keys, beside five of their own, for a few rows at a time."""
    monkeypatch.setattr(attention, "SCORES_AT_ONCE", rows * chunk * 4 * 12)
    query = normal(0, 12, chunk, 4, 8)
    shared, own = [normal(i, 4, 2, 7, 8) for i in (1, 2)], [normal(i, 12, 2, 5, 8) for i in (3, 4)]
    if integers:
        shared, own = ([quantize(x, axis=-1) for x in pair] for pair in (shared, own))
    plain, plain_own = ([x.dequantized(jnp.float32) if integers else x for x in pair] for pair in (shared, own))
    of_rows = [jnp.repeat(x, 3, axis=0) for x in plain]
    length = 1 + jnp.arange(12) % 7
    seen = jnp.broadcast_to((jnp.arange(7) < length[:, None])[:, None], (12, chunk, 7))
    of_own = attention.visible(jnp.arange(5)[None], (jnp.arange(12) % 4)[:, None] + jnp.arange(chunk))

    @jax.jit
    def both(query):
        wanted = attention.attend_segments(query, [Segment(*of_rows, seen), Segment(*plain_own, of_own)])
        return wanted, attention.attend_cached(query, [Segment(*own, of_own), Segment(*shared, seen)])

    np.testing.assert_allclose(*both(query), atol=1e-6)


def test_an_opening_holds_a_copy_of_its_groups_prefix():
    """Two prefixes of three positions, the second of two tokens; of two groups the first has the second prefix."""

    def keys(first):
        return jnp.arange(first, first + 6, dtype=jnp.float32).reshape(1, 6, 1)

    prefix = SharedPrefix(((keys(0), keys(10)),), length=jnp.array([3, 2]), row=jnp.array([1, 1, 0, 0]))
    read = (jnp.full((2, 1, 2, 1), 50.0), jnp.full((2, 1, 2, 1), 60.0))
    opening = Opening((read,), length=jnp.array([2, 1])).with_prefix(prefix)
    key, value = (np.asarray(x)[:, 0, :, 0].tolist() for x in opening.layers[0])
    assert key == [[3, 4, 5, 50, 50], [0, 1, 2, 50, 50]]
    assert value == [[13, 14, 15, 60, 60], [10, 11, 12, 60, 60]]
    assert opening.of_rows(4).tolist() == [2, 2, 1, 1]
    start = jnp.array([2, 2, 3, 3])
    for window, hidden in ((0, []), (3, [0, 1])):
        seen = np.asarray(opening.segment(0, jnp.full((4, 1), 4), start, window).visible)[:, 0]
        of_group = [[True, True, False, True, True], [True, True, True, True, False]]
        expected = np.repeat(of_group, 2, axis=0)
        for row in range(4):
            position = [0, 1, 2, int(start[row]), int(start[row]) + 1]
            expected[row] &= ~np.isin(position, hidden)
        np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "found"),
    [(8, 4, (("tensor",), 1)), (8, 1, (("tensor",), 2)), (6, 3, ((), 1)), (3, 1, ((), 1)), (3, 3, ((), 1))],
)
def test_heads_are_divided_among_two_devices_where_both_kinds_can_be(heads, kv_heads, found, monkeypatch):
    monkeypatch.setattr(axes, "compiler_axes", lambda: ("tensor",))
    monkeypatch.setattr(jax.sharding, "get_abstract_mesh", lambda: SimpleNamespace(shape={"tensor": 2}))
    assert axes._head_axes(heads, kv_heads) == found


@pytest.mark.nightly
@pytest.mark.usefixtures("small_blocks")
def test_bins_in_bfloat16_equal_the_plain_form():
    inputs = random_inputs(len(PACKED), 64, 64, dtype=jnp.bfloat16)
    blocks, plain = compared(row_attention.attention, inputs, segment_ids=PACKED)
    chex.assert_trees_all_close(blocks, plain, atol=0.02, rtol=0.02)


@pytest.mark.nightly
@pytest.mark.usefixtures("small_blocks")
def test_each_device_reads_what_its_bins_need():
    """Inside `jax.shard_map` over rows; the gradient of a replicated parameter is the sum of those of the devices."""
    inputs = random_inputs(len(PACKED), 64, 64)

    def gradient(form, scale, segments, *inputs):
        def loss(scale):
            mixed = form(*(scale * x for x in inputs), segment_ids=segments)
            return jnp.sum(jnp.where(of_queries(segments != 0, mixed), jnp.sin(mixed), 0))

        return jax.value_and_grad(loss)(scale)

    def of_device(scale, *arrays):
        scale = jax.lax.pcast(scale, ("data",), to="varying")
        return jax.lax.psum(gradient(row_attention.attention, scale, *arrays), "data")

    mesh, rows = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,)), Spec("data")
    mapped = jax.shard_map(of_device, mesh=mesh, in_specs=(Spec(), *[rows] * 4), out_specs=Spec())
    arguments = (jnp.float32(1.5), PACKED, *inputs)
    plain = gradient(plain_attention, *arguments)
    chex.assert_trees_all_close(jax.jit(mapped)(*arguments), plain, rtol=1e-4, atol=1e-3)


@pytest.mark.nightly
def test_a_row_of_blocks_needs_no_square_of_scores():
    shapes = jax.eval_shape(lambda: random_inputs(1, 8192, 8192))
    gradient = jax.jit(functools.partial(value_and_gradients, row_attention.attention))
    square = 4 * 4 * 8192**2
    assert gradient.lower(*shapes).compile().memory_analysis().temp_size_in_bytes < square / 8


@pytest.mark.nightly
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="needs the TPU compiler, libtpu")
@pytest.mark.parametrize(
    ("head_dim", "dtype", "window", "packed"), [(64, "bfloat16", 0, True), (128, "float32", 300, False)], ids=str
)
def test_a_program_for_a_tpu_has_the_splash_kernel(head_dim, dtype, window, packed):
    device = SingleDeviceSharding(described_devices("v5e:4x4")[0][0])
    shapes = jax.eval_shape(lambda: random_inputs(1, 600, 700, head_dim=head_dim, dtype=jnp.dtype(dtype)))
    arrays = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), shapes)
    segments = random_segments(1, 700) if packed else None
    attention = functools.partial(row_attention.attention, window=window, segment_ids=segments)
    compiled = jax.jit(functools.partial(value_and_gradients, attention)).lower(*arrays).compile()
    assert compiled.as_text().count("tpu_custom_call") >= 3  # forward, and gradients of queries, of keys and values


@pytest.mark.nightly
@pytest.mark.parametrize(("window", "packed"), [(0, False), (13, True)])
def test_positions_on_four_devices_equal_the_plain_form(monkeypatch, window, packed):
    check_positions(monkeypatch, window=window, packed=packed)


@pytest.mark.nightly
@pytest.mark.parametrize(("heads", "kv_heads", "implementation"), [(6, 3, "blocks"), (2, 1, "splash")])
def test_no_device_waits_in_its_branch_for_another(monkeypatch, heads, kv_heads, implementation):
    check_branches(monkeypatch, heads, kv_heads, implementation)
