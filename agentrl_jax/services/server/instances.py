"""The instances of a server: numbered, limited in number, one request at a time each, and closed when idle."""

import contextlib
import dataclasses
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

from agentrl_jax.services.environment import ServiceEnvironment, StepResult

_log = logging.getLogger(__name__)

MOST_WAITING = 16
"""Requests that may run in one instance or wait for it, so that a hanging one does not occupy all threads."""


class UnknownHandle(LookupError):
    """There is no such instance, or no longer."""


class NoRoom(RuntimeError):
    """The limit of open instances, or of requests to one instance, is reached."""


@dataclasses.dataclass(eq=False)
class Instance:
    """A client's environment.

    Attributes:
        env: the environment.
        last: its last answer; None before its first episode.
        used: end of its last request, in monotonic seconds.
        broken: a request never returned from it, so that it can only be dropped.
        waiting: requests that are running in it or waiting for it.
    """

    env: ServiceEnvironment
    last: StepResult | None = None
    used: float = 0.0
    broken: bool = False
    waiting: int = 0
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class Instances:
    """All instances of a server. Thread-safe."""

    def __init__(
        self,
        make: Callable[[], ServiceEnvironment],
        *,
        most: int,
        idle_timeout: float,
        reclaim_after: float = 0.0,
        seconds: float = 300.0,
        first: int = 0,
        reclaimed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Starts without instances.

        Args:
            make: creates an environment.
            most: limit of open instances.
            idle_timeout: seconds without a request after which an instance is closed; 0 for never.
            reclaim_after: seconds without a request after which an unfinished instance may be closed to make room for a
                new one; 0 for never.
            seconds: time that a request waits for the previous one.
            first: handle of the first instance.
            reclaimed: called for each instance closed to make room.
            clock: returns seconds.
        """
        self._make, self._most, self._idle_timeout, self._clock = make, most, idle_timeout, clock
        self._reclaim_after, self._seconds = reclaim_after, seconds
        self._open: dict[int, Instance] = {}
        self._lock = threading.Lock()
        self._next = first
        self._coming = 0
        self._closed = False
        self._reclaimed = reclaimed
        self.hung = 0
        """Instances that were abandoned and whose request is still running."""

    def __len__(self) -> int:
        """Number of open instances."""
        with self._lock:
            return len(self._open)

    def handles(self) -> list[int]:
        """Handles of the open instances."""
        with self._lock:
            return list(self._open)

    def create(self) -> int:
        """Opens an instance and returns its handle; handles are never reused.

        At the limit, a finished instance without a running request is closed to make room; otherwise the instance that
        was idle longest, if it was idle for at least `reclaim_after` seconds.

        Raises:
            NoRoom: too many instances are open, or the server is shutting down.
        """
        while True:
            with self._lock:
                if self._closed:
                    raise NoRoom("the server is shutting down")
                if len(self._open) + self._coming < self._most:
                    handle = self._next
                    self._next += 1
                    self._coming += 1
                    break
            if not self._reclaim():
                raise NoRoom(
                    f"{self._most} instances are open or on their way ({self.hung} of them hung) and no more are "
                    "allowed; close some, or start the server with a larger --max-instances"
                )
        try:
            env = self._make()  # may take long
        finally:
            with self._lock:
                self._coming -= 1
        with self._lock:
            if not self._closed:
                self._open[handle] = Instance(env, used=self._clock())
                return handle
        env.close()
        raise NoRoom("the server is shutting down")

    @contextlib.contextmanager
    def use(self, handle: int) -> Iterator[Instance]:
        """Locks an instance for one thread; others wait.

        Raises:
            UnknownHandle: the instance is not open.
        """
        with self._lock:
            instance = self._open.get(handle)
            if instance is None:
                raise UnknownHandle(f"The id {handle} is not valid.")
            if instance.waiting >= MOST_WAITING:
                raise NoRoom(f"{MOST_WAITING} requests wait for instance {handle}; ask again")
            instance.waiting += 1
        try:
            # Without a time limit, every request behind a hanging one would block its thread forever.
            if not instance.lock.acquire(timeout=self._seconds):
                raise UnknownHandle(f"The id {handle} is not valid.")
            try:
                if instance.broken or self._open.get(handle) is not instance:  # closed while this thread waited
                    raise UnknownHandle(f"The id {handle} is not valid.")
                try:
                    yield instance
                finally:
                    instance.used = self._clock()
            finally:
                instance.lock.release()
        finally:
            with self._lock:
                instance.waiting -= 1

    def close(self, handle: int) -> bool:
        """Closes an instance; False if there is none."""
        with self._lock:
            instance = self._open.pop(handle, None)
        if instance is None:
            return False
        with instance.lock:
            self._shut(handle, instance)
        return True

    def abandon(self, handle: int) -> None:
        """Drops an instance whose request is still running; it is closed when that request returns."""
        with self._lock:
            instance = self._open.pop(handle, None)
        if instance is not None:
            instance.broken = True
            with self._lock:
                self._coming += 1  # it still counts towards the limit
                self.hung += 1
            threading.Thread(target=self._shut_later, args=(handle, instance), daemon=True).start()

    def expire(self) -> int:
        """Closes instances that were idle too long, and returns their number."""
        if not self._idle_timeout:
            return 0
        limit, count = self._clock() - self._idle_timeout, 0
        with self._lock:
            idle = {h: i for h, i in self._open.items() if i.used < limit and not i.lock.locked()}
        for handle, instance in idle.items():
            count += self._shut_idle(handle, instance, limit)
        return count

    def _reclaim(self) -> bool:
        """Closes the best instance to make room for a new one; False if there is none."""
        now = self._clock()
        limit = now - self._reclaim_after if self._reclaim_after else -math.inf
        with self._lock:
            free = [(h, i, i.last is not None and i.last.done) for h, i in self._open.items() if not i.waiting]
        able = [each for each in free if each[2] or each[1].used <= limit]
        # Another thread may have closed or used the best one meanwhile.
        for handle, instance, finished in sorted(able, key=lambda each: (not each[2], each[1].used)):
            if self._shut_idle(handle, instance, instance.used if finished else limit):
                self._reclaimed()
                return True
        return False

    def _shut_idle(self, handle: int, instance: Instance, limit: float) -> bool:
        """Closes an instance that has no running request and whose last one ended at `limit` or before."""
        if not instance.lock.acquire(blocking=False):
            return False
        try:
            with self._lock:
                mine = not instance.waiting and instance.used <= limit and self._open.get(handle) is instance
                if mine:
                    del self._open[handle]
            if mine:
                self._shut(handle, instance)
            return mine
        finally:
            instance.lock.release()

    def close_all(self, seconds: float) -> int:
        """Closes all instances within some seconds and accepts no new ones; returns how many were still busy."""
        with self._lock:
            self._closed = True
            left, self._open = self._open, {}
        end, stuck = self._clock() + seconds, 0
        for handle, instance in left.items():
            if instance.lock.acquire(timeout=max(end - self._clock(), 0.01)):
                self._shut(handle, instance)
                instance.lock.release()
            else:
                stuck += 1
        return stuck

    def _shut_later(self, handle: int, instance: Instance) -> None:
        with instance.lock:
            self._shut(handle, instance)
        with self._lock:
            self._coming -= 1
            self.hung -= 1

    def _shut(self, handle: int, instance: Instance) -> None:
        try:
            instance.env.close()
        except Exception:
            _log.exception("closing instance %d failed", handle)
