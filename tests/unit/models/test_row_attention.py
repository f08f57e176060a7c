import functools

import chex
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as Spec
from plain_attention import PACKED, compared, ids_of, random_inputs, random_segments, small_blocks  # noqa: F401
from spread_attention import MESH, check_branches

from agentrl_jax.errors import BadValue
from agentrl_jax.models import block_attention, row_attention
from agentrl_jax.models.sequence_attention import shard_positions


@pytest.mark.parametrize(
    ("chunk", "length", "window", "segments"),
    [(21, 21, 5, random_segments(4, 21)), (53, 60, 0, None), (61, 64, 13, PACKED)],
)
@pytest.mark.usefixtures("small_blocks")
def test_blocks_equal_the_plain_form(chunk, length, window, segments):
    """Three blocks, the last one shorter, and loops, of which one is padded and after a shared prefix; bins."""
    inputs = random_inputs(4, chunk, length)
    blocks, plain = compared(row_attention.attention, inputs, window=window, segment_ids=segments)
    chex.assert_trees_all_close(blocks, plain, atol=2e-5, rtol=2e-5)


@pytest.mark.usefixtures("small_blocks")
def test_rows_computed_together_read_what_one_of_them_sees():
    packed = functools.partial(block_attention._attend_packed, size=8, window=0)
    together, plain = compared(packed, random_inputs(len(PACKED), 64, 64), segment_ids=PACKED)
    chex.assert_trees_all_close(together, plain, atol=2e-5, rtol=2e-5)


@pytest.mark.usefixtures("small_blocks")
def test_keys_before_the_segments_of_a_block_are_not_read():
    """NaN in keys and values of an earlier segment reaches no later one; the plain form multiplies it by zero."""
    query, key, value = random_inputs(1, 24, 64)
    key, value = (x.at[:, :, :24].set(jnp.nan) for x in (key, value))
    blocks, plain = compared(row_attention.attention, (query, key, value), segment_ids=ids_of([32, 16, 16]))
    assert jnp.all(jnp.isnan(plain[0]))
    chex.assert_tree_all_finite(blocks)
    for gradient in blocks[1][1:]:
        assert not jnp.any(gradient[:, :, :32])


def test_no_device_waits_in_its_branch_for_another(monkeypatch):
    check_branches(monkeypatch, heads=2, kv_heads=1, implementation="blocks")


def test_lengths_that_cannot_be_divided_are_refused():
    divided = jax.shard_map(
        lambda x: shard_positions(x, "sequence"), mesh=MESH, in_specs=Spec(), out_specs=Spec(None, "sequence")
    )
    with pytest.raises(BadValue) as refused:
        jax.eval_shape(divided, jnp.zeros((1, 20)))
    assert (refused.value.key, refused.value.value) == ("positions", 20)
