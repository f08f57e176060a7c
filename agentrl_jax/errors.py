"""What is refused: errors that carry the key and the value, and helpers to build their messages."""

import contextlib
import re
from collections.abc import Iterator
from typing import Any, Self


class Refusal(Exception):
    """A key, and its value, that cannot be used. The message, one line, names both, what was expected and what to do.

    Attributes:
        key: A key of the configuration, an option of a command, a file or folder, or the name of an argument.
        value: What it has; None where the whole is meant.
    """

    def __init__(self, message: str, *, key: object = "", value: Any = None) -> None:
        super().__init__(message)
        self.key, self.value = str(key), value

    @classmethod
    def of(cls, key: str, value: Any, why: str) -> Self:
        """The refusal with the message `KEY is VALUE, WHY`."""
        return cls(f"{key} is {shown(value)}, {why}", key=key, value=value)

    @classmethod
    def at(cls, place: object, what: str, value: Any = None) -> Self:
        """The refusal of a file, a folder, an address or a word of the command line: `PLACE: WHAT`."""
        return cls(f"{shortened(place, MAX_FOREIGN)}: {what}", key=place, value=value)

    @classmethod
    def after(cls, where: object, error: BaseException) -> Self:
        """The refusal of another error, with its key and its value, whose message begins with `where`, if given.

        An error without a key is about `where`.
        """
        key = getattr(error, "key", "") or where
        return cls(f"{where}: {error}" if where else str(error), key=key, value=getattr(error, "value", None))


class UserError(Refusal):
    """An error that the user can fix. The command line prints it without a traceback and ends with exit code 2."""


class BadValue(Refusal, ValueError):
    """An argument, or a part of a file, that a function cannot use."""


@contextlib.contextmanager
def refusals(where: str = "") -> Iterator[None]:
    """Turns a `ValueError` or `OSError` of the block into a `UserError`; its message begins with `where`, if given."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise UserError.after(where, error) from error


MAX_ERROR = 1000
"""Maximum number of characters in an error message at the terminal."""

MAX_FOREIGN = 500
"""Maximum number of characters in a foreign text (for example a server's error) that a message repeats."""

MAX_QUOTE = 120
"""Maximum number of characters in a value that a message quotes."""


def shortened(value: object, limit: int = MAX_QUOTE) -> str:
    """Returns a value as one line of text; if it is longer than `limit` characters, its middle is left out."""
    text = str(value)
    if len(text) > 20 * limit:  # the middle is left out anyway, and may be many megabytes
        text = text[: 10 * limit] + " ... " + text[-10 * limit :]
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(text) <= limit:
        return text
    head = (limit - 5) * 2 // 3
    return f"{text[:head]} ... {text[len(text) - (limit - 5 - head) :]}"


_PLAIN = re.compile(r"(?!(?i:true|false|none|null|nan|inf)$)[a-zA-Z_/.][\w./@:+-]*")


def shown(value: Any) -> str:
    """Returns a value as one writes it in YAML, in one line that is shortened if it is long."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, str) and not _PLAIN.fullmatch(value):
        return shortened(repr(value))
    return shortened(list(value) if isinstance(value, tuple) else value)


def counted(number: int, noun: str) -> str:
    """Returns a number with a noun, which gets its plural s unless the number is 1."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def text_flaw(text: str) -> str | None:
    """Returns why a text cannot be written to a file or used as a path, or None."""
    if "\0" in text:
        return "a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "characters that are no Unicode text (half of a surrogate pair, or bytes that are not UTF-8)"
    return None
