"""Reads a configuration in such a way that no key is silently ignored."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from agentrl_jax.models.io.errors import WeightsError


def shown(value: Any) -> str:
    """`value` as shown in a message, truncated."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


class Fields:
    """The keys of one configuration. Every key must be read by one of the methods, or `finish` refuses it by name.

    A key that is absent has its value in `defaults`, or None.
    """

    def __init__(self, raw: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None):
        self.raw, self.where = raw, where
        self._defaults = defaults or {}
        self._taken: set[str] = set()

    def take(self, key: str) -> Any:
        """The value of `key`, of any type."""
        self._taken.add(key)
        return self.raw.get(key, self._defaults.get(key))

    def refuse(self, key: str, expected: str) -> WeightsError:
        """An error that names `key`, its value and what was expected."""
        value = self.raw.get(key, self._defaults.get(key))
        return WeightsError(f"{self.where}: {key} is {shown(value)}; expected {expected}")

    def whole(self, key: str, most: int, least: int = 1) -> int:
        """An integer from `least` to `most`."""
        value = self.take(key)
        if type(value) is not int or not least <= value <= most:
            raise self.refuse(key, f"a whole number from {least} to {most}")
        return value

    def number(self, key: str) -> float:
        """A finite number above 0."""
        value = self.take(key)
        if type(value) not in (int, float) or not 0 < value <= 1e300 or not math.isfinite(value):
            raise self.refuse(key, "a finite number above 0")
        return float(value)

    def flag(self, key: str) -> bool:
        """A boolean; False if the key is absent and has no default."""
        value = self.take(key)
        if value is not None and type(value) is not bool:
            raise self.refuse(key, "true or false")
        return bool(value)

    def only(self, allowed: Mapping[str, Collection[Any]]) -> None:
        """Refuses keys with a value that is not `allowed`; null counts as absent."""
        for key, values in allowed.items():
            value = self.raw.get(key)
            if value is not None and not any(_same(value, other) for other in values):
                choices = " or ".join([*map(shown, values), "nothing"])
                raise self.refuse(key, f"{choices}, because nothing else is supported here")
            self._taken.add(key)

    def finish(self, harmless: Collection[str] = (), prefixes: tuple[str, ...] = ()) -> None:
        """Refuses every key that was not read, unless it is `harmless` or starts with one of `prefixes`.

        Keys that are null are accepted, because they set nothing and newer libraries write many of them.
        """
        known = self._taken.union(harmless)
        left = [key for key, value in self.raw.items() if value is not None and key not in known]
        left = [key for key in left if not (prefixes and key.startswith(prefixes))]
        if left:
            listed = ", ".join(f"{shown(key)}: {shown(self.raw[key])}" for key in sorted(left)[:8])
            more = f" and {len(left) - 8} more" if len(left) > 8 else ""
            raise WeightsError(f"{self.where}: settings that are not supported: {listed}{more}; use another model")


def _same(a: Any, b: Any) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)
