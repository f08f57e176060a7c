"""Checks the shapes and dtypes in the annotations of functions of `CHECKED` at every call while tests run.

Fields of classes are not checked, because JAX builds its trees with other leaves too; annotations without shapes are
not checked either, because tests pass stand-ins.
"""

import inspect
import typing

import beartype
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import AbstractArray, install_import_hook

CHECKED = ("agentrl_jax.algos", "agentrl_jax.learner", "agentrl_jax.models", "agentrl_jax.rollout")

_CONF = beartype.BeartypeConf(is_pep484_tower=True)


def install():
    install_import_hook(CHECKED, "shape_checks.check")


def check(function):
    """Returns a function that raises where arguments or result do not have the annotated shapes and dtypes."""
    if function.__name__ == "__init__":
        return function
    hints = {name: hint for name, hint in function.__annotations__.items() if _has_shape(hint)}
    if not hints:
        return function
    function.__annotations__ = hints
    signature = inspect.signature(function)
    function.__signature__ = signature.replace(
        parameters=[p.replace(annotation=hints.get(p.name, typing.Any)) for p in signature.parameters.values()],
        return_annotation=hints.get("return", typing.Any),
    )
    checked = beartype.beartype(function, conf=_CONF)
    of_jax = {name for name, hint in hints.items() if not _has_shape(hint, np.ndarray)}

    def with_arrays(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        for name in of_jax & bound.arguments.keys():
            bound.arguments[name] = jax.tree.map(
                _array, bound.arguments[name], is_leaf=lambda x: not isinstance(x, tuple | list | dict)
            )
        return checked(*bound.args, **bound.kwargs)

    return with_arrays


def _has_shape(hint, kind=None):
    if isinstance(hint, type) and issubclass(hint, AbstractArray):
        return kind is None or hint.array_type is kind
    return any(_has_shape(part, kind) for part in typing.get_args(hint))


def _array(x):
    return jnp.asarray(x) if isinstance(x, np.ndarray | np.generic) else x
