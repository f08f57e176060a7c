"""The error for every file that cannot be used."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from agentrl_jax.errors import BadValue


class WeightsError(BadValue):
    """A file of weights, or its configuration, is damaged or not supported.

    The message is one line: the file, which is the key, what is wrong with it, and what to do.
    """


@contextlib.contextmanager
def naming(file: str | Path) -> Iterator[None]:
    """Turns an `OSError` or `ValueError` inside the block, raised while a file is read, into a `WeightsError`."""
    try:
        yield
    except WeightsError:
        raise
    except OSError as error:
        raise WeightsError.at(file, f"cannot be read ({error.strerror}); check its permissions") from error
    except ValueError as error:
        raise WeightsError.after(file, error) from error
