"""Arrays of 8-bit integers with scales, for rollouts whose memory traffic decides their speed."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float, Int8

LARGEST = 127
"""The largest integer used; -128 is not, so that the range is symmetric."""
INTEGERS: dict[str, tuple[str, ...]] = {
    "none": (),
    "weights": ("decode_dtype",),
    "weights_and_cache": ("decode_dtype", "cache_dtype"),
}
"""The fields of `DecoderConfig` that are int8, by `rollout.quantization`."""


class Quantized(struct.PyTreeNode):
    """Integers times scales; everything along one axis has the same scale, whose size is 1 there."""

    values: Int8[Array, "*shape"]
    scale: Float[Array, "*scales"]
    """f32."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array that this stands for."""
        return self.values.shape

    @property
    def ndim(self) -> int:
        """Number of its dimensions."""
        return self.values.ndim

    def __getitem__(self, index) -> "Quantized":
        """An index of the axes that have their own scales, such as tokens of an embedding."""
        return Quantized(self.values[index], self.scale[index])

    def dequantized(self, dtype: jnp.dtype) -> jax.Array:
        """The array, in this dtype."""
        return (self.values.astype(jnp.float32) * self.scale).astype(dtype)


def quantize(x: jax.Array, axis: int) -> Quantized:
    """The nearest integers, with the smallest scales that hold the largest number along `axis`.

    `x` has any floating dtype; the scales have size 1 along `axis`, and are 1 / 127 where everything is 0.
    """
    x = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(x), axis=axis, keepdims=True)
    scale = jnp.where(largest > 0, largest, 1.0) / LARGEST
    return Quantized(jnp.round(x / scale).astype(jnp.int8), scale)
