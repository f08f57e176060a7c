"""gymnax's base classes, without the plotting libraries that its other environments import.

`import gymnax` imports matplotlib, seaborn and pandas, which takes longer than importing JAX. Here they are imported
when something in gymnax draws.
"""

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

_PLOTTING = {"matplotlib": ("pyplot", "colors"), "seaborn": ()}
"""Modules that are only needed to draw, and those of their submodules that gymnax names."""


class _Deferred(ModuleType):
    """Stands for a module until something of it is read."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self.__name__), name)


@contextlib.contextmanager
def _without_plotting() -> Iterator[None]:
    """Imports inside find a `_Deferred` for every plotting module that is not imported yet."""
    placed = []
    for name, submodules in _PLOTTING.items():
        if name in sys.modules:
            continue
        module = _Deferred(name)
        module.__path__ = []
        for each in submodules:
            setattr(module, each, _Deferred(f"{name}.{each}"))
            placed.append((f"{name}.{each}", getattr(module, each)))
        placed.append((name, module))
    for name, module in placed:
        sys.modules[name] = module
    try:
        yield
    finally:
        for name, module in placed:
            if sys.modules.get(name) is module:
                del sys.modules[name]


with _without_plotting():
    from gymnax.environments import environment, spaces

__all__ = ["environment", "spaces"]
