"""Reads a configuration in such a way that no key is silently ignored."""

import math
from collections.abc import Collection, Mapping
from typing import Any

from agentrl_jax.errors import shortened
from agentrl_jax.models.io.errors import WeightsError


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

    def error(self, key: str, expected: str) -> WeightsError:
        """An error that names `key`, its value and what was expected."""
        return WeightsError.at(self.where, f"{key} is {shortened(repr(self.take(key)))}; expected {expected}")

    def integer(self, key: str, most: int, least: int = 1, default: int | None = None) -> int:
        """An integer from `least` to `most`; `default`, if there is one, for null."""
        value = self.take(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not least <= value <= most:
            raise self.error(key, f"an integer from {least} to {most}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above 0; `default`, if there is one, for null."""
        value = self.take(key)
        if value is None and default is not None:
            return default
        if type(value) not in (int, float) or not 0 < value <= 1e300 or not math.isfinite(value):
            raise self.error(key, "a finite number above 0")
        return float(value)

    def flag(self, key: str) -> bool:
        """A boolean; False if the key is absent and has no default."""
        value = self.take(key)
        if value is not None and type(value) is not bool:
            raise self.error(key, "true or false")
        return bool(value)

    def only(self, allowed: Mapping[str, Collection[Any]]) -> None:
        """Refuses keys with a value that is not `allowed`; null counts as absent."""
        for key, values in allowed.items():
            value = self.raw.get(key)
            same = (value == other and isinstance(value, bool) == isinstance(other, bool) for other in values)
            if value is not None and not any(same):
                raise self.error(key, f"{' or '.join([*map(repr, values), 'nothing'])}; no other value is supported")
            self._taken.add(key)

    def finish(self, ignored: Collection[str] = (), prefixes: tuple[str, ...] = ()) -> None:
        """Refuses every key that was not read, unless it is `ignored` or starts with one of `prefixes`.

        Keys that are null are accepted, because they set nothing and newer libraries write many of them.
        """
        known = self._taken.union(ignored)
        left = [key for key, value in self.raw.items() if value is not None and key not in known]
        if left := [key for key in left if not key.startswith(prefixes)]:
            listed = ", ".join(f"{shortened(repr(key))}: {shortened(repr(self.raw[key]))}" for key in sorted(left)[:8])
            more = f" and {len(left) - 8} more" if len(left) > 8 else ""
            raise WeightsError.at(self.where, f"settings that are not supported: {listed}{more}; use another model")
