"""Matrix products in the form that each platform computes fastest. Elsewhere a product is written as in the papers.

All of it is for CPUs, which multiply operands as they lie and copy or convert the others first: a small step of
decoding would spend its time on copies of the parameters. Other platforms get plain products.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

FEW_ROWS = 8
"""Below so many rows a bfloat16 product with the transpose of a matrix is faster without a transposed copy of it."""


class Transposed(struct.PyTreeNode):
    """A matrix [In, Out] kept as [Out, In], so that a product with few rows copies these rows instead of the matrix."""

    matrix: jax.Array

    def __rmatmul__(self, x: jax.Array) -> jax.Array:
        """`x` [M, In] times the matrix: [M, Out]."""
        many = 8 * len(x) > min(self.matrix.shape)
        return x @ self.matrix.T if many else (self.matrix @ x.T).T


Matrix = jax.Array | Transposed


def for_few_rows(matrix: jax.Array) -> Matrix:
    """A matrix [In, Out] as `matmul` multiplies a few rows by it fastest; made once, before a loop of products."""
    return matrix if matrix.dtype == jnp.bfloat16 else Transposed(matrix.T)


def transposed_table(embedding: jax.Array) -> jax.Array | None:
    """What `unembed` wants to have beside an embedding [V, D]; made once, before a loop of products."""
    return embedding.T if embedding.dtype == jnp.bfloat16 else None


def matmul(x: jax.Array, matrix: Matrix) -> jax.Array:
    """`x` [..., In] times `matrix` [In, Out]: [..., Out]."""
    # Rows of one matrix: for a gradient over two axes at once a CPU would copy what it multiplies.
    rows = x.reshape(-1, x.shape[-1])
    product = _bfloat16_product(rows, matrix) if x.dtype == jnp.bfloat16 else rows @ matrix
    return product.reshape(*x.shape[:-1], -1)


def unembed(x: jax.Array, embedding: jax.Array, transposed: jax.Array | None = None) -> jax.Array:
    """`x` [..., D] times the transpose of `embedding` [V, D], f32[..., V]; `transposed` as from `transposed_table`."""
    table = embedding.T if transposed is None or x.size < FEW_ROWS * x.shape[-1] else transposed
    return float32_product(x, table.astype(x.dtype))


def float32_product(x: jax.Array, y: jax.Array) -> jax.Array:
    """Matrix product of arrays of any type, added up and returned in f32."""
    return jnp.matmul(x, y, preferred_element_type=jnp.float32)


def attention_scores(queries: jax.Array, keys: jax.Array, *, few: bool) -> jax.Array:
    """Products f32[B, K, M, S] of M queries [B, K, M, Dh] with S keys [B, K, S, Dh]; with `few` of small M."""
    if not few:
        return float32_product(queries, keys.swapaxes(2, 3))
    # The keys go first, for the reason of `Transposed`; without the barrier they would go second again.
    scores = float32_product(keys, queries.swapaxes(2, 3))
    return jax.lax.optimization_barrier(scores).swapaxes(2, 3)


def rotate_half(x: jax.Array) -> jax.Array:
    """The halves (x1, x2) of the last axis of an f32 array as (-x2, x1)."""
    # As a product with a constant: slices of a few numbers and their gradients cost several times more than the whole
    # layer's products on a CPU.
    half = x.shape[-1] // 2
    swap = np.roll(np.diag(np.repeat([1.0, -1.0], half)), half, axis=1)
    return x @ jnp.asarray(swap, jnp.float32)


@jax.custom_vjp
def _bfloat16_product(x: jax.Array, matrix: jax.Array) -> jax.Array:
    """`x` [M, In] times `matrix` [In, Out], both bfloat16.

    A CPU has bfloat16 instructions for products that stay in f32 until they are rounded, of operands as they lie; it
    converts all others first, which takes three to four times as long. So the backward pass lays operands out anew.
    """

    def rounded(x, matrix):
        return float32_product(x, matrix).astype(x.dtype)

    return jax.lax.platform_dependent(x, matrix, cpu=rounded, default=jnp.matmul)


def _bfloat16_product_forward(x, matrix):
    return _bfloat16_product(x, matrix), (x, matrix)


def _bfloat16_product_backward(operands, cotangent):
    x, matrix = (_laid_out_transposed(operand) for operand in operands)
    return _bfloat16_product(cotangent, matrix), _bfloat16_product(x, cotangent)


_bfloat16_product.defvjp(_bfloat16_product_forward, _bfloat16_product_backward)


def _laid_out_transposed(matrix: jax.Array) -> jax.Array:
    """The transpose of a matrix, on a CPU as a copy: a vector lies in one way only, and the barrier keeps it one."""

    def copied(matrix):
        return jax.lax.optimization_barrier(matrix.T.reshape(-1)).reshape(matrix.shape[::-1])

    return jax.lax.platform_dependent(matrix, cpu=copied, default=jnp.transpose)
