"""Environments of other installed packages, which name a function that registers them as an entry point."""

import logging
from importlib import metadata

GROUP = "agentrl.environments"
"""Group of the entry points; each names a function without arguments that calls `envs_jax.register`."""

_log = logging.getLogger(__name__)


def register_installed() -> None:
    """Calls the function of each entry point.

    One that fails hides none of the other environments, so that it is a warning and no error.
    """
    for entry in metadata.entry_points(group=GROUP):
        try:
            entry.load()()
        except Exception as error:  # the code of another package may fail in any way
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            package = f"package {entry.dist.name}" if entry.dist else "a package"
            _log.warning("entry point %r (%s) of %s fails: %s", entry.name, entry.value, package, reason)
