"""Classes of environments by their import path, `package.module:Class`."""

import importlib
from typing import Any

from agentrl_jax.errors import MAX_FOREIGN, BadValue, shortened

ADAPTERS = {
    "gymnasium": "agentrl_jax.environments.gymnasium_adapter",
    "textarena": "agentrl_jax.environments.textarena_adapter",
}
"""Modules that make classes of the environments of other packages, by the first part of the path."""


COMPILED = "compiled:"
"""Beginning of the names of compiled environments by their import path: `envs_jax.by_path.PREFIX`, without JAX."""


def is_path(name: str) -> bool:
    """Whether the name of an environment is the import path of a Python environment."""
    return ":" in name and not is_compiled_path(name)


def is_compiled_path(name: str) -> bool:
    """Whether the name of an environment is the import path of a compiled one."""
    return name.startswith(COMPILED)


def load(path: str) -> type[Any]:
    """Imports a class. What is imported runs: give no path that the user has not named in this command or file.

    Raises:
        BadValue: there is no such module or class, it is no class, or its module fails.
    """
    module, _, name = path.partition(":")
    if module in ADAPTERS:
        adapted: type[Any] = imported(path, ADAPTERS[module]).load(name)
        return adapted
    if not all(part.isidentifier() for part in [*module.split("."), *name.split(".")]):
        raise BadValue.of("env", path, "expected an import path, package.module:Class")
    found = imported(path, module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise BadValue.of("env", path, f"but {module} has no {name}") from None
        found = getattr(found, part)
    if not isinstance(found, type):
        raise BadValue.of("env", path, f"which is {type(found).__name__} {found!r}; expected a class")
    return found


def imported(path: str, module: str, key: str = "env") -> Any:
    """Imports a module, which the import path at a key of a configuration names.

    Raises:
        BadValue: there is no such module, or it fails.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise BadValue.of(key, path, f"whose module needs {error.name}, which is not installed") from None
        why = f"but there is no module {error.name}; give the command in the folder where it lies, or install it"
        raise BadValue.of(key, path, why) from None
    except BaseException as error:  # SystemExit too
        raise BadValue.of(
            key, path, f"whose module fails: {type(error).__name__}: {shortened(error, MAX_FOREIGN)}"
        ) from error
