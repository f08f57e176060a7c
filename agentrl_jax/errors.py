"""`UserError`, whose message is shown to the user, and helpers to build such messages."""

import contextlib
from collections.abc import Iterator


class UserError(Exception):
    """An error that the user can fix. Its message, one line, says what was wrong, what was expected and what to do.

    The command line prints it without a traceback and ends with exit code 2.
    """


@contextlib.contextmanager
def refusals(where: str = "") -> Iterator[None]:
    """Turns a `ValueError` or `OSError` of the block into a `UserError`; its message begins with `where`, if given."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise UserError(f"{where}: {error}" if where else str(error)) from error


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
