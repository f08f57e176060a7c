"""The one exception whose message is written for the person at the terminal."""

import contextlib
from collections.abc import Iterator


class UserError(Exception):
    """Something the user can put right.

    The message is one line and says what was wrong, what was expected and what to do. The command line prints it
    without a traceback and ends with exit code 2.
    """


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Passes on as `UserError` what the parts of a run, which know no user, refuse while they are put together."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from error


MAX_ERROR = 1000
"""Characters of a message at the terminal."""

MAX_FOREIGN = 500
"""Characters of a text from elsewhere that a message repeats."""

MAX_QUOTE = 120
"""Characters of a value that a message quotes."""


def shortened(value: object, limit: int = MAX_QUOTE) -> str:
    """The text of a value on one line, with its middle left out where it is longer than `limit` characters."""
    text = str(value)
    if len(text) > 20 * limit:  # what is between is left out anyway, and may be many megabytes
        text = text[: 10 * limit] + " ... " + text[-10 * limit :]
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if len(text) <= limit:
        return text
    head = (limit - 5) * 2 // 3
    return f"{text[:head]} ... {text[len(text) - (limit - 5 - head) :]}"


def text_flaw(text: str) -> str | None:
    """What keeps a text from being written to a file or used as a path; None if nothing does."""
    if "\0" in text:
        return "a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "characters that are no Unicode text (half of a surrogate pair, or bytes that are not UTF-8)"
    return None
