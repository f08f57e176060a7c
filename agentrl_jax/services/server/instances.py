"""The instances of a server: numbered, limited in number, one request at a time each, and closed when idle."""

import contextlib
import dataclasses
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator

from agentrl_jax.services.environment import ServiceEnvironment, StepResult
from agentrl_jax.services.server.limits import Limits

_log = logging.getLogger(__name__)

MAX_PENDING_REQUESTS = 16
"""Requests that may run in one instance or wait for it, so that a hanging one does not occupy all threads."""


class UnknownHandle(LookupError):
    """There is no such instance, or no longer."""

    def __init__(self, handle: int):
        super().__init__(f"The id {handle} is not valid.")


class NoRoom(RuntimeError):
    """The limit of open instances, or of requests to one instance, is reached."""


@dataclasses.dataclass(eq=False)
class Instance:
    """A client's environment, and its last answer; None before its first episode.

    `used` is the end of its last request, `waiting` the number of requests that are running in it or wait for it.
    """

    env: ServiceEnvironment
    last: StepResult | None = None
    used: float = 0.0
    waiting: int = 0
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class Instances:
    """All instances of a server. Thread-safe."""

    def __init__(
        self,
        make: Callable[[], ServiceEnvironment],
        limits: Limits,
        *,
        reclaimed: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Starts without instances; `reclaimed` is called for each one closed to make room, `clock` returns seconds."""
        self._make, self._limits, self._reclaimed, self._clock = make, limits, reclaimed, clock
        self._open: dict[int, Instance] = {}
        self._lock = threading.Lock()
        self._handles = itertools.count(limits.first_handle)
        self._not_listed = 0  # instances that are being created or closed, or hang; they count towards the limit
        self._closed = False
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
        was idle longest, if it was idle for at least `reclaim_after` seconds. Raises `NoRoom` if there is none, and
        while the server is shutting down.
        """
        while True:
            with self._lock:
                if self._closed:
                    raise NoRoom("the server is shutting down")
                if len(self._open) + self._not_listed < self._limits.instances:
                    handle = next(self._handles)
                    self._not_listed += 1
                    break
            if not self._reclaim():
                raise NoRoom(
                    f"{self._limits.instances} instances are open or being opened ({self.hung} of them hung) and no "
                    "more are allowed; close some, or start the server with a larger --max-instances"
                )
        try:
            env = self._make()  # may take long
        finally:
            with self._lock:
                self._not_listed -= 1
        with self._lock:
            if not self._closed:
                self._open[handle] = Instance(env, used=self._clock())
                return handle
        env.close()
        raise NoRoom("the server is shutting down")

    @contextlib.contextmanager
    def use(self, handle: int) -> Iterator[Instance]:
        """Locks an instance for one thread; others wait. Raises `UnknownHandle` if the instance is not open."""
        with self._lock:
            instance = self._open.get(handle)
            if instance is None:
                raise UnknownHandle(handle)
            if instance.waiting >= MAX_PENDING_REQUESTS:
                raise NoRoom(f"{MAX_PENDING_REQUESTS} requests wait for instance {handle}; ask again")
            instance.waiting += 1
        locked = False
        try:
            # Without a time limit, every request behind a hanging one would block its thread forever.
            locked = instance.lock.acquire(timeout=self._request_seconds())
            if not locked or self._open.get(handle) is not instance:  # closed while this thread waited
                raise UnknownHandle(handle)
            yield instance
        finally:
            if locked:
                instance.used = self._clock()
                instance.lock.release()
            with self._lock:
                instance.waiting -= 1

    def close(self, handle: int) -> bool:
        """Closes an instance, after its running request; False if there is none.

        If that request takes too long, the instance is abandoned.
        """
        instance = self._remove(handle)
        if instance is None:
            return False
        if instance.lock.acquire(timeout=self._request_seconds()):
            self._close_locked(handle, instance)
        else:
            self._close_later(handle, instance)
        return True

    def abandon(self, handle: int) -> None:
        """Drops an instance whose request is still running; it is closed when that request returns."""
        instance = self._remove(handle)
        if instance is not None:
            self._close_later(handle, instance)

    def expire(self) -> int:
        """Closes instances that were idle too long, and returns their number."""
        if not self._limits.idle_timeout:
            return 0
        limit = self._clock() - self._limits.idle_timeout
        with self._lock:
            idle = [(h, i) for h, i in self._open.items() if i.used < limit and not i.lock.locked()]
        return sum(self._close_if_idle(handle, instance, limit) for handle, instance in idle)

    def close_all(self, seconds: float) -> int:
        """Closes all instances within some seconds and accepts no new ones; returns how many were still busy."""
        with self._lock:
            self._closed = True
            left, self._open = self._open, {}
            self._not_listed += len(left)
        end, busy = self._clock() + seconds, 0
        for handle, instance in left.items():
            if instance.lock.acquire(timeout=max(end - self._clock(), 0.01)):
                self._close_locked(handle, instance)
            else:
                busy += 1
        return busy

    def _reclaim(self) -> bool:
        """Closes the best instance to make room for a new one; False if there is none."""
        after = self._limits.reclaim_after
        limit = self._clock() - after if after else -math.inf
        with self._lock:
            free = [(h, i, i.last is not None and i.last.done) for h, i in self._open.items() if not i.waiting]
        able = [each for each in free if each[2] or each[1].used <= limit]
        # Another thread may have closed or used the best one meanwhile.
        for handle, instance, finished in sorted(able, key=lambda each: (not each[2], each[1].used)):
            if self._close_if_idle(handle, instance, instance.used if finished else limit):
                self._reclaimed()
                return True
        return False

    def _close_if_idle(self, handle: int, instance: Instance, limit: float) -> bool:
        """Closes an instance that has no running request and whose last one ended at `limit` or before."""
        if not instance.lock.acquire(blocking=False):
            return False
        with self._lock:
            idle = not instance.waiting and instance.used <= limit and self._open.get(handle) is instance
            if idle:
                del self._open[handle]
                self._not_listed += 1
        if idle:
            self._close_locked(handle, instance)
        else:
            instance.lock.release()
        return idle

    def _remove(self, handle: int) -> Instance | None:
        """Takes an instance off the list; it keeps its place until it is closed."""
        with self._lock:
            instance = self._open.pop(handle, None)
            self._not_listed += instance is not None
        return instance

    def _close_later(self, handle: int, instance: Instance) -> None:
        """Closes a removed instance when its request returns, in a thread."""
        with self._lock:
            self.hung += 1

        def closes() -> None:
            instance.lock.acquire()
            with self._lock:
                self.hung -= 1
            self._close_locked(handle, instance)

        threading.Thread(target=closes, daemon=True).start()

    def _close_locked(self, handle: int, instance: Instance) -> None:
        """Closes a removed instance, whose lock this thread holds, and frees its place."""
        try:
            instance.env.close()
        except Exception:
            _log.exception("closing instance %d failed", handle)
        finally:
            instance.lock.release()
        with self._lock:
            self._not_listed -= 1

    def _request_seconds(self) -> float:
        """Time to wait for the lock of an instance."""
        return min(self._limits.seconds, threading.TIMEOUT_MAX)
