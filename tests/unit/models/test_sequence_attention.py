"""Attention with the positions of a row on several devices, against the plain form on one."""

import chex
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as Spec
from spread_attention import MESH, check_branches

from agentrl_jax.errors import BadValue
from agentrl_jax.models.sequence_attention import all_gather_positions, shard_positions


def test_no_device_waits_in_its_branch_for_another(monkeypatch):
    check_branches(monkeypatch, heads=2, kv_heads=1, implementation="blocks")


def test_gathered_positions_are_in_order():
    def there_and_back(x):
        return all_gather_positions(shard_positions(x, "sequence"), "sequence")

    rows = jnp.arange(2 * 16).reshape(2, 16)
    back = jax.shard_map(there_and_back, mesh=MESH, in_specs=Spec("data"), out_specs=Spec("data", "sequence"))(rows)
    chex.assert_trees_all_equal(back, jnp.tile(rows, 4))


def test_lengths_that_cannot_be_divided_are_refused():
    divided = jax.shard_map(
        lambda x: shard_positions(x, "sequence"), mesh=MESH, in_specs=Spec(), out_specs=Spec(None, "sequence")
    )
    with pytest.raises(BadValue) as refused:
        jax.eval_shape(divided, jnp.zeros((1, 20)))
    assert (refused.value.key, refused.value.value) == ("positions", 20)
