"""Opens environments of a class by its import path: in threads, or in processes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from agentrl_jax.environments.loading import load
from agentrl_jax.environments.processes import Processes
from agentrl_jax.environments.protocol import HostEnvironment, Traits, traits_of
from agentrl_jax.environments.threads import Failed, Threads
from agentrl_jax.environments.watchdog import Watchdog
from agentrl_jax.errors import BadValue, refusals

LOCK_SECONDS = 15.0
"""How much longer than a call's deadline Python's lock may be kept, before the run ends."""

MOST_ABANDONED = 64
"""Threads that may hang, before no further environment is opened."""


class Opened(HostEnvironment, Protocol):
    """An environment in its worker. Its calls raise `threads.Failed`, or `threads.Hung` after their deadline."""

    def plan(self) -> Sequence[str]:
        """Actions that solve the episode from its current state; with `Traits.has_plan`."""

    def content(self, item: int) -> str:
        """What an item is about; with `Traits.has_content`."""


class Pool(Protocol):
    """Environments of one class. Thread-safe."""

    name: str
    traits: Traits

    def open(self) -> Opened:
        """An environment before its first `reset`; raises `threads.Failed` if there is none."""

    def log_to(self, log: Path) -> None:
        """Says where what environments print goes, if they have processes of their own."""

    def close(self) -> None:
        """Ends the workers."""


def open_pool(
    path: str,
    options: Mapping[str, Any],
    *,
    processes: int = 0,
    seconds: float = 60.0,
) -> Pool:
    """Imports a class and returns a pool of its environments, which are made with `options`.

    With `processes`, environments run in so many processes of their own, and the class is not imported here. Otherwise
    each has a thread of this process. A call may take `seconds`.

    Raises:
        UserError: there is no such class, it fails to import, or it is no environment.
    """
    watchdog = Watchdog(seconds + LOCK_SECONDS)
    with refusals():
        try:
            if processes:
                return Processes(path, options, number=processes, seconds=seconds, watchdog=watchdog)
            kind = load(path)
            traits = traits_of(kind)
        except (TypeError, Failed) as error:
            raise BadValue(f"env {path}: {error}", key="env", value=path) from error
        if traits.alone:
            raise BadValue.of(
                "env.processes", processes, f"but each environment of {path} needs a process; use 1 or more"
            )
    return Threads(
        kind.__qualname__,
        lambda: kind(**options),
        traits,
        seconds=seconds,
        most_abandoned=MOST_ABANDONED,
        watchdog=watchdog,
    )
