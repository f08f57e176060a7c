"""Functions that see the whole batch where they are vmapped.

`jax.vmap` turns a loop into one that copies the state of every row in every turn, because each row may end at another
one. A function on rows can do better: it ends when all rows have, writes in place, and goes on with few rows where few
are left.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Bool, Int


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


def where_rows(rows: Bool[Array, " B"], new: Any, old: Any) -> Any:
    """Returns the first pytree in some rows, and the second one in the others."""
    return jax.tree.map(lambda a, b: jnp.where(rows.reshape(-1, *[1] * (a.ndim - 1)), a, b), new, old)


def while_active(
    step: Callable[..., Any], active: Bool[Array, " B"], state: Any, given: Any, *, shrink: int = 4, smallest: int = 32
) -> Any:
    """Repeats a step until no row is active, with fewer rows where few are active.

    `step(active, state, given)` returns which of the active rows still are, and the state, which it does not change in
    the other rows. Leaves are [B, ...]; the result for a row does not depend on the other rows.
    """
    rows = active.shape[0]
    few = rows // shrink if rows >= shrink * smallest else 0
    active, state = jax.lax.while_loop(
        lambda carry: jnp.sum(carry[0]) > few, lambda carry: step(*carry, given), (active, state)
    )
    if few:
        chosen, found = _first_rows(active, few)
        part = while_active(step, found, _take(state, chosen), _take(given, chosen), shrink=shrink, smallest=smallest)
        state = _put(state, chosen, part)
    return state


def in_turns(step: Callable[..., Any], active: Bool[Array, " B"], state: Any, given: Any, size: int) -> Any:
    """Takes one step in each active row, in as many turns as are needed, each with at most `size` rows.

    `step(active, state, given)` returns the state; see `while_active`.
    """

    def turn(carry: tuple[Any, Any]) -> tuple[Any, Any]:
        active, state = carry
        chosen, found = _first_rows(active, size)
        part = step(found, _take(state, chosen), _take(given, chosen))
        return active.at[chosen].set(False, mode="drop"), _put(state, chosen, part)

    return jax.lax.while_loop(lambda carry: jnp.any(carry[0]), turn, (active, state))[1]


def _first_rows(active: Bool[Array, " B"], size: int) -> tuple[Int[Array, " K"], Bool[Array, " K"]]:
    """Returns the first active rows, and which of them exist; the others are no rows."""
    return jnp.nonzero(active, size=size, fill_value=len(active))[0], jnp.arange(size) < jnp.sum(active)


def _take(tree: Any, rows: Int[Array, " K"]) -> Any:
    return jax.tree.map(lambda leaf: leaf.at[rows].get(mode="clip"), tree)


def _put(tree: Any, rows: Int[Array, " K"], part: Any) -> Any:
    return jax.tree.map(lambda leaf, new: leaf.at[rows].set(new, mode="drop"), tree, part)
