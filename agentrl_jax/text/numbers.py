"""Formats numbers as fixed-point text.

The rule: multiply by `10**decimals` in float32, round to the nearest integer with ties to even (IEEE 754
roundTiesToEven), saturate at the available digits, write sign, digits without leading zeros, and the point. Zero has
no sign. Product and rounding are single IEEE operations, so the text is the same on every platform.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from agentrl_jax.errors import BadValue

DIGIT_PIECES = (*"0123456789", ".", "-")
"""The pieces that the ids from `number_pieces` index."""

POINT, MINUS = 10, 11


def number_pieces(value: Float[Array, ""] | Int[Array, ""], decimals: int, integer_digits: int = 4) -> Int[Array, " K"]:
    """Writes a number as ids into `DIGIT_PIECES`; -1 means no piece, anywhere in the row.

    `decimals` and `integer_digits` are the digits after and before the point. Larger magnitudes are written as all
    nines, and NaN as zero, since the device cannot raise an error. Without decimals there is no point.

    Raises:
        ValueError: more than seven digits, which exceeds the precision of float32.
    """
    if decimals < 0 or integer_digits < 1 or decimals + integer_digits > 7:
        raise BadValue(
            f"{integer_digits} digits before and {decimals} after the point; expected at least one before and at most "
            "seven together, which float32 holds exactly",
            key="digits",
            value=integer_digits,
        )
    limit = 10 ** (decimals + integer_digits) - 1
    scaled = jnp.round(jnp.asarray(value, jnp.float32) * jnp.float32(10**decimals))
    scaled = jnp.where(jnp.isnan(scaled), 0.0, jnp.clip(scaled, -limit, limit)).astype(jnp.int32)
    powers = 10 ** np.arange(integer_digits + decimals - 1, -1, -1, dtype=np.int32)
    magnitude = jnp.abs(scaled)
    shown = (magnitude >= powers) | (powers <= 10**decimals)
    digits = jnp.where(shown, magnitude // powers % 10, -1)
    minus = jnp.where(scaled < 0, MINUS, -1)[None]
    point = jnp.full((1 if decimals else 0,), POINT, jnp.int32)
    return jnp.concatenate([minus, digits[:integer_digits], point, digits[integer_digits:]]).astype(jnp.int32)
