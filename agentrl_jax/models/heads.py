"""Attention on devices that share its heads: each computes its own, without any collective.

Shapes: as in `attention`, where the queries are those of the last `C` of `S` positions.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.extend
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as Spec
from jaxtyping import Array, Int

from agentrl_jax.models.attention import Keys, Query
from agentrl_jax.models.manual_axes import as_varying, varying

Function = Callable[..., Query]
"""A function of a query, keys, values and arrays of integers, such as segment ids."""


def compiler_axes() -> tuple[str, ...]:
    """The mesh axes of several devices that no `jax.shard_map` around maps, so that the compiler shards over them."""
    mesh = jax.sharding.get_abstract_mesh()
    kinds = zip(mesh.axis_names, mesh.axis_types)
    return tuple(name for name, kind in kinds if kind == AxisType.Auto and mesh.shape[name] > 1)


def map_heads(function: Function, query: Query, key: Keys, value: Keys, *integers: Int[Array, "..."]) -> Query:
    """A function with its gradient, for arrays of which the compiler may shard the heads, also inside `jax.shard_map`.

    The integers are the same for all heads.
    """
    over_axes = frozenset[str]().union(*(varying(x) for x in (query, key, value)))
    query, key, value = (as_varying(x, sorted(over_axes)) for x in (query, key, value))
    over, copies = _head_axes(query.shape[2], key.shape[1])
    key, value = (jnp.repeat(x, copies, axis=1) if copies > 1 else x for x in (key, value))
    of_query, of_key = Spec(None, None, over), Spec(None, over)
    specs = (of_query, of_key, of_key, *[Spec()] * len(integers))

    def backward(query, key, value, *rest):
        *integers, cotangent = rest
        return jax.vjp(lambda *x: function(*x, *integers), query, key, value)[1](cotangent)

    @jax.custom_vjp
    def run(query, key, value, integers):
        (mixed,) = _call(lambda *x: (function(*x),), (query, key, value, *integers), specs, (of_query,), over_axes)
        return mixed

    def run_backward(residuals, cotangent):
        query, key, value, integers = residuals
        arguments = (query, key, value, *integers, cotangent)
        gradients = _call(backward, arguments, (*specs, of_query), specs[:3], over_axes)
        return (*gradients, tuple(None for _ in integers))

    run.defvjp(lambda *x: (run(*x), x), run_backward)
    return run(query, key, value, integers)


def _call(
    function: Callable[..., tuple[jax.Array, ...]],
    arguments: Sequence[jax.Array],
    in_specs: Sequence[Spec],
    out_specs: Sequence[Spec],
    over_axes: frozenset[str],
) -> tuple[jax.Array, ...]:
    """Calls a function; inside `jax.shard_map` its results are marked as varying over `over_axes`.

    The compiler cannot divide a kernel among devices, and adds collectives where it divides anything else, so all axes
    that are left to it are mapped here. Kernels of libraries do not say over which axes their results vary, so the
    check of that is off inside, and the function is traced from plain shapes, as if it ran on one device.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return function(*arguments)

    def traced(*arguments):
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in arguments]
        return tuple(jax.extend.core.jaxpr_as_fun(jax.make_jaxpr(function)(*shapes))(*arguments))

    mapped = jax.shard_map(
        traced, in_specs=tuple(in_specs), out_specs=tuple(out_specs), axis_names={*mesh.axis_names}, check_vma=False
    )
    return tuple(as_varying(x, sorted(over_axes)) for x in mapped(*arguments))


def _head_axes(heads: int, kv_heads: int) -> tuple[tuple[str, ...], int]:
    """The mesh axes to shard heads over, and the copies of each key-value head."""
    mesh, over = jax.sharding.get_abstract_mesh(), compiler_axes()
    devices = math.prod(mesh.shape[name] for name in over)
    if heads % devices == 0 and kv_heads % devices == 0:
        return over, 1
    if heads % devices == 0 and devices % kv_heads == 0:
        return over, devices // kv_heads
    return (), 1
