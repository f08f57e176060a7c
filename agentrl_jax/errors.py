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
