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


MAX_FOREIGN = 500
"""Characters of a text from elsewhere that a message repeats."""


def shortened(text: str, most: int = MAX_FOREIGN) -> str:
    """A text from elsewhere as part of a message: one line, without control characters, at most `most` characters."""
    head = text[: most + 1]
    clean = "".join(c if c.isprintable() else " " for c in head)
    return clean if len(head) <= most else f"{clean[: most - 3]}..."
