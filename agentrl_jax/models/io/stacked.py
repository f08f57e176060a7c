"""Loads files with one tensor per layer into our stacked arrays, without a second copy of the weights."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import numpy as np
from flax.traverse_util import unflatten_dict
from jax.sharding import Sharding, SingleDeviceSharding

from agentrl_jax.errors import BadValue
from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.models.io.names import Leaf
from agentrl_jax.models.shape import DecoderConfig

Placement = Sharding | Callable[[DecoderConfig, str, tuple[int, ...]], Sharding] | None
"""Where arrays are placed: one sharding for all; a function from the decoder, the array's path (`layers/query`) and its
shape to a sharding; or None for the first device."""

DTYPES = ("float32", "bfloat16", "float16")
"""Supported dtypes of weights."""


class Tensors(Protocol):
    """Tensors of one or several files."""

    where: str
    """Name of the source for error messages."""

    def read(self, key: str, index: tuple[slice, ...]) -> np.ndarray:
        """The slice `index` of tensor `key`, in any floating dtype."""
        ...


def numpy_dtype(dtype: Any) -> np.dtype:
    """One of `DTYPES` as a NumPy dtype; raises a `ValueError` for others."""
    result = np.dtype(dtype)  # JAX registers bfloat16 with NumPy
    if result.name not in DTYPES:
        raise BadValue.of("dtype", result.name, f"expected one of {', '.join(DTYPES)}")
    return result


def load_leaves(
    tensors: Tensors, wanted: Mapping[str, Leaf], dtype: np.dtype, placement: Placement, config: DecoderConfig
) -> dict[str, Any]:
    """Loads nested arrays with the paths of `wanted`; their shapes must have been checked.

    Each device's shard is read separately, so the host holds at most one array besides those already placed. (Pages of
    a memory-mapped file that were read count as resident too until the system reclaims them.)
    """

    def sharding(path: str, leaf: Leaf) -> Sharding:
        if placement is None:
            return SingleDeviceSharding(jax.local_devices()[0])
        return placement if isinstance(placement, Sharding) else placement(config, path, leaf.shape)

    loaded = {path: _load_leaf(tensors, leaf, dtype, sharding(path, leaf)) for path, leaf in wanted.items()}
    return unflatten_dict(loaded, sep="/")


def not_finite(values: np.ndarray, dtype: np.dtype) -> str:
    """What is wrong with values that are not finite as `dtype`, and what to do."""
    if np.isfinite(values).all():
        return f"has values beyond {dtype.name}; use float32 or bfloat16"
    return "has values that are not finite (NaN or infinite); use undamaged weights"


def _load_leaf(tensors: Tensors, leaf: Leaf, dtype: np.dtype, sharding: Sharding) -> jax.Array:
    parts: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None  # JAX's type annotation allows None, but it is never passed
        bounds = tuple(axis.indices(size)[:2] for axis, size in zip(index, leaf.shape))
        if bounds not in parts:  # devices with the same shard share one read
            parts[bounds] = _read(tensors, leaf, bounds, dtype)
        return parts[bounds]

    return jax.make_array_from_callback(leaf.shape, sharding, part, dtype=dtype)


def _read(tensors: Tensors, leaf: Leaf, bounds: tuple[tuple[int, int], ...], dtype: np.dtype) -> np.ndarray:
    out = np.empty([stop - start for start, stop in bounds], dtype)
    inner = bounds[1:] if leaf.stacked else bounds
    index = tuple(slice(*axis) for axis in (inner[::-1] if leaf.transposed else inner))
    targets = zip(leaf.keys[slice(*bounds[0])], out) if leaf.stacked else [(leaf.keys[0], out)]
    for key, target in targets:
        values = tensors.read(key, index)
        with np.errstate(over="ignore"):
            target[...] = values.T if leaf.transposed else values
        if not np.isfinite(target).all():
            raise WeightsError.at(tensors.where, f"{key} {not_finite(values, dtype)}")
    return out
