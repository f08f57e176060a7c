"""Compiled environments by their import path, such as `compiled:lights_out:LightsOut`."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from envs_jax.environment import TextEnvironment
from envs_jax.errors import BadValue

PREFIX = "compiled:"
"""Beginning of such a name; behind it stand module and class."""


def load(name: str) -> tuple[Callable[..., tuple[TextEnvironment, Any]], str]:
    """The factory of a class and the first line of what it says of itself; `ValueError` if it cannot be used.

    What is imported runs. Options of the factory are arguments of the class, whose parameters are its defaults.
    """
    module, _, path = name.removeprefix(PREFIX).partition(":")
    if not path or not all(part.isidentifier() for part in [*module.split("."), *path.split(".")]):
        raise BadValue(f"env is {name}; expected {PREFIX}package.module:Class", "env", name)
    try:
        kind: Any = importlib.import_module(module)
        for part in path.split("."):
            kind = getattr(kind, part)
    except (ModuleNotFoundError, AttributeError) as error:
        why = f"{error}; name the class in the command, where its module lies, or install it"
        raise BadValue(f"env is {name}, but {why}", "env", name) from None
    except Exception as error:
        raise BadValue(f"env is {name}, whose module fails: {type(error).__name__}: {error}", "env", name) from error
    if not (isinstance(kind, type) and issubclass(kind, TextEnvironment)):
        raise BadValue(f"env is {name}, which is {kind!r}; expected a TextEnvironment", "env", name)

    def make(**options: Any) -> tuple[TextEnvironment, Any]:
        env = kind(**options)
        return env, env.default_params

    signature = inspect.signature(kind) if kind.__init__ is not object.__init__ else inspect.Signature()
    make.__signature__ = signature  # type: ignore[attr-defined]
    return make, (inspect.getdoc(kind) or "").partition("\n")[0]
