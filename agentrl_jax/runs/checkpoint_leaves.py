"""Leaves of a training state: the form in which they are stored, their names, and what they may hold."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

LARGEST = 1e18
"""No number of a state exceeds this: the square of a larger one, and so any norm, overflows float32."""


def is_in_range(leaf: Any) -> bool:
    """Whether an array or number is finite and within `LARGEST`; integers always are."""
    on_host = isinstance(leaf, jax.Array) and leaf.sharding.memory_kind == "pinned_host"
    if not jnp.issubdtype(leaf.dtype if on_host else jnp.asarray(leaf).dtype, jnp.floating):
        return True
    return bool((_moved_is_within if on_host else _is_within)(leaf))


@jax.jit
def _is_within(leaf: Any) -> Any:
    return jnp.all(jnp.abs(leaf) <= LARGEST)  # false for NaN too


@jax.jit
def _moved_is_within(leaf: Any) -> Any:
    """For offloaded leaves: TPUs compile no reduction in the memory of the hosts."""
    return _is_within(jax.device_put(leaf, jax.memory.Space.Device))


def _is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def storable(state: Any) -> Any:
    """The state with typed keys as their uint32 data and NumPy scalars as arrays: the only leaves Orbax stores."""

    def convert(leaf: Any) -> Any:
        if _is_key(leaf):
            if isinstance(leaf, jax.ShapeDtypeStruct):
                return jax.eval_shape(jax.random.key_data, leaf)
            return jax.random.key_data(leaf)
        return np.asarray(leaf) if isinstance(leaf, np.generic) else leaf

    return jax.tree.map(convert, state)


def abstract(leaf: Any) -> Any:
    """Shape, dtype and sharding of an array, as which Orbax restores it; other leaves as they are."""
    if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return leaf
    sharding = leaf.sharding or jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def with_type_of(like: Any, leaf: Any) -> Any:
    """A restored leaf with the type of that of the state: the inverse of `storable`."""
    if _is_key(like):
        return jax.random.wrap_key_data(leaf, impl=jax.random.key_impl(jnp.empty((), like.dtype)))
    return like.dtype.type(leaf) if isinstance(like, np.generic) else leaf


def layout(leaf: Any) -> str:
    """Dtype and shape of a leaf, for messages."""
    return f"{np.dtype(leaf.dtype).name}{list(leaf.shape)}" if hasattr(leaf, "shape") else "one number"


def leaves(tree: Any) -> dict[str, Any]:
    """Leaves by name; names are the same for dataclasses and for the dictionaries that Orbax makes of them."""
    paths = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in paths}
