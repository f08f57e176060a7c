"""Attention over rows whose positions are shared out to the devices of a mesh axis (context parallelism).

For use inside `jax.shard_map`. Of 2 n equal pieces of a row, device i of n has pieces i and 2 n - 1 - i, so that all
devices compute equally many pairs of a query and an earlier key. Keys and values are all-gathered (Llama 3, Dubey et
al. 2024, section 3.3.2), not passed around a ring or exchanged for heads: with few key-value heads they are small, one
collective of a layer takes them where a ring needs n - 1, any number of heads is served, and each piece is computed by
the same functions, masks and sums as a whole row.

Shapes: as in `attention`, with `S` positions of a row and `P` = S / n of them on each device.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from agentrl_jax.errors import BadValue
from agentrl_jax.models.heads import compiler_axes, map_heads
from agentrl_jax.models.row_attention import attention
from agentrl_jax.models.shape import Attention


def shard_positions(x: jax.Array, axis_name: str, *, axis: int = 1) -> jax.Array:
    """This device's pieces of an array that all devices have whole; `axis` is that of the positions.

    Raises:
        ValueError: the positions cannot be divided into two pieces for each device.
    """
    devices, length = jax.lax.axis_size(axis_name), x.shape[axis]
    if length % (2 * devices):
        raise BadValue(
            f"{length} positions cannot be divided into two equal pieces for each of {devices} devices; pad them to a "
            f"multiple of {2 * devices}",
            key="positions",
            value=length,
        )
    size, index = length // (2 * devices), jax.lax.axis_index(axis_name)
    starts = (index * size, (2 * devices - 1 - index) * size)
    return jnp.concatenate([jax.lax.dynamic_slice_in_dim(x, start, size, axis) for start in starts], axis)


def all_gather_positions(x: jax.Array, axis_name: str, *, axis: int = 1) -> jax.Array:
    """The arrays of all devices as one, in the order of the positions; the inverse of `shard_positions`."""
    devices = jax.lax.axis_size(axis_name)
    pieces = jnp.split(jax.lax.all_gather(x, axis_name, axis=axis, tiled=True), 2 * devices, axis)
    return jnp.concatenate(pieces[::2] + pieces[::-2], axis)


def sequence_attention(
    query: Float[Array, "B P H Dh"],
    key: Float[Array, "B K P Dh"],
    value: Float[Array, "B K P Dh"],
    *,
    axis_name: str,
    window: int = 0,
    segment_ids: Int[Array, "B S"] | None = None,
    implementation: Attention = "auto",
) -> Float[Array, "B P H Dh"]:
    """As `row_attention.attention`, for this device's pieces of whole rows; the backward pass gathers again.

    `segment_ids` are those of whole rows, on every device.
    """
    devices = jax.lax.axis_size(axis_name)
    size = query.shape[1] // 2

    def of_piece(number, query, key, value, *segments):
        end = (number + 1) * size
        ids = segments[0][:, :end] if segments else None
        options: dict[str, Any] = {"window": window, "segment_ids": ids, "implementation": implementation}
        return attention(query, key[:, :, :end], value[:, :, :end], **options)

    def of_device(index, query, *keys):
        pieces = ((index, query[:, :size]), (2 * devices - 1 - index, query[:, size:]))
        return jnp.concatenate([of_piece(number, part, *keys) for number, part in pieces], axis=1)

    def of_positions(query, key, value, index, *segments):
        # One branch for each device, because the lengths of keys that its pieces see are static.
        branches = [partial(of_device, number) for number in range(devices)]
        return jax.lax.switch(index, branches, query, key, value, *segments)

    def gathered(query, key, value, *segments):
        key, value = (all_gather_positions(x, axis_name, axis=2) for x in (key, value))
        arrays = (query, key, value, jax.lax.axis_index(axis_name), *segments)
        # Left to itself, the compiler may reshard in a branch what it cannot divide by heads. On CPUs, a collective
        # permute waits for all devices of the mesh, so also for those in another branch.
        return map_heads(of_positions, *arrays) if compiler_axes() else of_positions(*arrays)

    segments = () if segment_ids is None else (segment_ids,)
    return jax.checkpoint(gathered)(query, key, value, *segments)
