"""The error of an argument, or a part of a file, that cannot be used."""

from typing import Any


class BadValue(ValueError):
    """An argument, or a part of a file, that cannot be used. The message names the value and what was expected.

    Attributes:
        key: The name of the argument, or the file or the place in it.
        value: What it has; None where the whole is meant.
    """

    def __init__(self, message: str, key: object, value: Any = None) -> None:
        super().__init__(message)
        self.key, self.value = str(key), value
