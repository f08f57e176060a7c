"""gymnax's base classes, without its own environments.

`import gymnax` imports all of them, and with them matplotlib, seaborn and pandas. Here its packages run their code when
something is read that they do not have yet. `importlib.util.LazyLoader` would run it at once, because the import of a
module reads the path of its package.
"""

import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    """A package that runs its code when a name is read that it does not have yet."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec = self.__spec__
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module(self)
        return getattr(self, name)


def _defer(name: str) -> None:
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    package.__class__ = _Package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)


for _name in ("gymnax", "gymnax.environments"):
    _defer(_name)

# A `from` import would ask the package first, which does not have them yet.
import gymnax.environments.environment as environment  # noqa: E402
import gymnax.environments.spaces as spaces  # noqa: E402

__all__ = ["environment", "spaces"]
