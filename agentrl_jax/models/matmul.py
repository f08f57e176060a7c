"""Matrix products in the form that each platform computes fastest, so that other modules can write plain products.

The special forms are for CPUs only. They multiply some memory layouts and dtypes directly but copy or convert the
others first, so a small decoding step would spend its time on copies of the parameters.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Float, Int

from agentrl_jax.models.quantized import Quantized

FEW_ROWS = 8
"""Below this number of rows, a bfloat16 product with a transposed matrix is faster without a transposed copy of it."""


class Transposed(struct.PyTreeNode):
    """A matrix stored transposed, so that a product with few rows copies the rows instead of the matrix."""

    matrix: Float[Array, "Out In"]

    def __rmatmul__(self, x: Float[Array, "M In"]) -> Float[Array, "M Out"]:
        """`x` times the matrix."""
        many = 8 * len(x) > min(self.matrix.shape)
        return x @ self.matrix.T if many else (self.matrix @ x.T).T


Matrix = Float[Array, "In Out"] | Transposed | Quantized
"""A matrix of a layer; integers have a scale for each output."""

Table = Float[Array, "V D"] | Quantized
"""An embedding; integers have a scale for each token."""


def for_few_rows(matrix: Float[Array, "In Out"]) -> Matrix:
    """A matrix in the form in which `matmul` is fastest for few rows; convert once, before a loop."""
    return matrix if matrix.dtype == jnp.bfloat16 else Transposed(matrix.T)


def transposed_table(embedding: Float[Array, "V D"]) -> Float[Array, "D V"] | None:
    """The transpose of an embedding for `unembed`, or None if not needed; compute it once, before a loop."""
    return embedding.T if embedding.dtype == jnp.bfloat16 else None


def matmul(x: Float[Array, "... In"], matrix: Matrix) -> Float[Array, "... Out"]:
    """`x` times `matrix`, both of the same dtype."""
    # Flatten to one matrix: in a gradient that contracts two axes a CPU would copy the operands.
    rows = x.reshape(-1, x.shape[-1])
    if isinstance(matrix, Quantized):
        product = project_out(rows, matrix).astype(x.dtype)
    else:
        product = _bfloat16_product(rows, matrix) if x.dtype == jnp.bfloat16 else rows @ matrix
    return product.reshape(*x.shape[:-1], -1)


def project_out(x: Float[Array, "... In"], matrix: Float[Array, "In Out"] | Quantized) -> Float[Array, "... Out"]:
    """`x` times an output matrix, f32."""
    if isinstance(matrix, Quantized):
        return float32_product(x, matrix.values.astype(x.dtype)) * matrix.scale
    return float32_product(x, matrix.astype(x.dtype))


def lookup(embedding: Table, tokens: Int[Array, "..."], dtype: str) -> Float[Array, "... D"]:
    """The rows of an embedding for tokens."""
    found = embedding[tokens]
    return found.dequantized(jnp.dtype(dtype)) if isinstance(found, Quantized) else found


def unembed(
    x: Float[Array, "... D"], embedding: Table, transposed: Float[Array, "D V"] | None = None
) -> Float[Array, "... V"]:
    """`x` times the transpose of `embedding`, f32; `transposed` as from `transposed_table`."""
    if isinstance(embedding, Quantized):
        return float32_product(x, embedding.values.T.astype(x.dtype)) * embedding.scale[:, 0]
    table = embedding.T if transposed is None or x.size < FEW_ROWS * x.shape[-1] else transposed
    return float32_product(x, table.astype(x.dtype))


def float32_product(x: jax.Array, y: jax.Array) -> jax.Array:
    """Matrix product of arrays of any dtype, accumulated and returned in f32."""
    return jnp.matmul(x, y, preferred_element_type=jnp.float32)


def attention_scores(
    queries: Float[Array, "*B M Dh"], keys: Float[Array, "*B S Dh"] | Quantized, *, few: bool = False
) -> Float[Array, "*B M S"]:
    """Products, f32, of M queries with S keys; set `few` if M is small. Integers have a scale for each key."""
    if isinstance(keys, Quantized):
        scores = attention_scores(queries, keys.values.astype(queries.dtype), few=few)
        return scores * keys.scale.swapaxes(-1, -2)

    def queries_first(queries, keys):
        return float32_product(queries, keys.swapaxes(-1, -2))

    if not few:
        return queries_first(queries, keys)

    def keys_first(queries, keys):
        # For the same reason as `Transposed`; without the barrier XLA would swap the operands back.
        scores = float32_product(keys, queries.swapaxes(-1, -2))
        return jax.lax.optimization_barrier(scores).swapaxes(-1, -2)

    return jax.lax.platform_dependent(queries, keys, cpu=keys_first, default=queries_first)


def weighted_values(
    weights: Float[Array, "*B M S"], values: Float[Array, "*B S Dh"] | Quantized, dtype: jnp.dtype
) -> Float[Array, "*B M Dh"]:
    """Sums, f32, of S values with f32 weights. Integers have a scale for each value, and are multiplied in `dtype`."""
    if isinstance(values, Quantized):
        weights, values = weights * values.scale.swapaxes(-1, -2), values.values.astype(dtype)
    return float32_product(weights.astype(values.dtype), values)


def rotate_half(x: jax.Array) -> jax.Array:
    """Maps the halves (x1, x2) of the last axis of an f32 array to (-x2, x1)."""
    # Written as a product with a constant: on a CPU, small slices and their gradients cost several times more than all
    # products of the layer.
    half = x.shape[-1] // 2
    swap = np.roll(np.diag(np.repeat([1.0, -1.0], half)), half, axis=1)
    return x @ jnp.asarray(swap, jnp.float32)


@jax.custom_vjp
def _bfloat16_product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """`x` [M, In] times `matrix` [In, Out], both bfloat16.

    A CPU has bfloat16 instructions for products that accumulate in f32, of operands that are not transposed. All others
    take three to four times as long, so the backward pass copies transposed operands.
    """
    return jax.lax.platform_dependent(
        x, matrix, cpu=lambda x, matrix: float32_product(x, matrix).astype(x.dtype), default=jnp.matmul
    )


def _bfloat16_product_backward(operands, cotangent):
    x, matrix = (_laid_out_transposed(operand) for operand in operands)
    return _bfloat16_product(cotangent, matrix), _bfloat16_product(x, cotangent)


_bfloat16_product.defvjp(lambda *operands: (_bfloat16_product(*operands), operands), _bfloat16_product_backward)


def _laid_out_transposed(matrix: jax.Array) -> jax.Array:
    """The transpose of a matrix, on a CPU as a copy: flattening forces the copy, and the barrier keeps it."""

    def copied(matrix):
        return jax.lax.optimization_barrier(matrix.T.reshape(-1)).reshape(matrix.shape[::-1])

    return jax.lax.platform_dependent(matrix, cpu=copied, default=jnp.transpose)
