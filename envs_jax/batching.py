"""Functions that see the whole batch where they are vmapped.

`jax.vmap` turns a loop into one that copies the state of every row in every turn, because each row may end at another
one. A function on rows can do better: it ends when all rows have, writes in place, and treats long rows together.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap


def on_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a function of one row of a function on rows, which `jax.vmap` calls with all of them.

    Arguments and results of `function` are pytrees whose leaves have a leading axis, its rows; those of the returned
    function have no such axis. It can be vmapped any number of times, and not differentiated.
    """

    @custom_vmap
    def rows(*arguments):
        return function(*arguments)

    @rows.def_vmap
    def _(axis_size, batched, *arguments):
        arguments = _broadcast(axis_size, batched, arguments)
        size = jax.tree.leaves(arguments)[0].shape[1]
        merged = jax.tree.map(lambda leaf: leaf.reshape(axis_size * size, *leaf.shape[2:]), arguments)
        result = jax.tree.map(lambda leaf: leaf.reshape(axis_size, size, *leaf.shape[1:]), rows(*merged))
        return result, jax.tree.map(lambda _: True, result)

    @custom_vmap
    def one(*arguments):
        return jax.tree.map(lambda leaf: leaf[0], rows(*jax.tree.map(lambda leaf: leaf[None], arguments)))

    @one.def_vmap
    def _(axis_size, batched, *arguments):
        result = rows(*_broadcast(axis_size, batched, arguments))
        return result, jax.tree.map(lambda _: True, result)

    return one


def _broadcast(size: int, batched: Any, arguments: Any) -> Any:
    return jax.tree.map(
        lambda leaf, has_axis: leaf if has_axis else jnp.broadcast_to(leaf, (size, *jnp.shape(leaf))),
        arguments,
        list(batched) if isinstance(arguments, list) else tuple(batched),
    )


def by_length(
    function: Callable[..., Any], lengths: jax.Array, arguments: Any, *, parts: int = 16, smallest: int = 32
) -> Any:
    """Calls a function on parts of the rows, the longest first, so that a loop over few long rows has few rows.

    `function` takes and returns pytrees with leaves [rows, ...], and its result for a row does not depend on the other
    rows. The results have the order of the rows.
    """
    rows = lengths.shape[0]
    number = max(1, min(parts, rows // smallest))
    while rows % number:
        number -= 1
    if number == 1:
        return function(*arguments)
    order = jnp.argsort(-lengths)
    split = jax.tree.map(lambda leaf: leaf[order].reshape(number, rows // number, *leaf.shape[1:]), arguments)
    results = jax.lax.map(lambda part: function(*part), split)
    back = jnp.argsort(order)
    return jax.tree.map(lambda leaf: leaf.reshape(rows, *leaf.shape[2:])[back], results)
