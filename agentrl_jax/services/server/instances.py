"""The instances that a server holds: numbered, one request at a time each, bounded, and closed when nobody asks."""

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator

from agentrl_jax.services.environment import Answer, ServiceEnvironment

_log = logging.getLogger(__name__)


class UnknownHandle(LookupError):
    """There is no such instance, or not any more."""


class NoRoom(RuntimeError):
    """As many instances are open as may be."""


@dataclasses.dataclass(eq=False)
class Instance:
    """One environment of a client.

    Attributes:
        env: the environment.
        last: what it said last; None before its first episode.
        used: monotonic seconds at the end of the last request.
        broken: a request never came back from it, so that it can only be dropped.
    """

    env: ServiceEnvironment
    last: Answer | None = None
    used: float = 0.0
    broken: bool = False
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)


class Instances:
    """All instances of a server. Safe in threads."""

    def __init__(
        self,
        make: Callable[[], ServiceEnvironment],
        *,
        most: int,
        idle_timeout: float,
        first: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Starts without instances.

        Args:
            make: makes an environment.
            most: instances that may be open at once.
            idle_timeout: seconds without a request after which an instance is closed; 0 for never.
            first: handle of the first instance.
            clock: tells seconds.
        """
        self._make, self._most, self._idle_timeout, self._clock = make, most, idle_timeout, clock
        self._open: dict[int, Instance] = {}
        self._lock = threading.Lock()
        self._next = first
        self._coming = 0
        self._closed = False

    def __len__(self) -> int:
        """Instances that are open."""
        with self._lock:
            return len(self._open)

    def handles(self) -> list[int]:
        """Handles of the instances that are open."""
        with self._lock:
            return list(self._open)

    def create(self) -> int:
        """Opens an instance and returns its handle; no handle is given twice.

        Raises:
            NoRoom: too many are open, or the server is about to end.
        """
        with self._lock:
            if self._closed:
                raise NoRoom("the server is shutting down")
            if len(self._open) + self._coming >= self._most:
                raise NoRoom(
                    f"{self._most} instances are open and no more are allowed; close some, or start the server with a "
                    "larger --max-instances"
                )
            handle = self._next
            self._next += 1
            self._coming += 1
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
        """An instance, for one thread at a time; the others wait.

        Raises:
            UnknownHandle: it is not open.
        """
        with self._lock:
            instance = self._open.get(handle)
        if instance is None:
            raise UnknownHandle(f"The id {handle} is not valid.")
        with instance.lock:
            if instance.broken or self._open.get(handle) is not instance:  # closed while this thread waited
                raise UnknownHandle(f"The id {handle} is not valid.")
            try:
                yield instance
            finally:
                instance.used = self._clock()

    def close(self, handle: int) -> bool:
        """Closes an instance; False where there is none."""
        with self._lock:
            instance = self._open.pop(handle, None)
        if instance is None:
            return False
        with instance.lock:
            self._shut(handle, instance)
        return True

    def abandon(self, handle: int) -> None:
        """Drops an instance whose request is still running somewhere; it is closed when that comes back."""
        with self._lock:
            instance = self._open.pop(handle, None)
        if instance is not None:
            instance.broken = True
            with self._lock:
                self._coming += 1  # it still takes its place
            threading.Thread(target=self._shut_later, args=(handle, instance), daemon=True).start()

    def expire(self) -> int:
        """Closes what was not asked anything for too long, and returns how many that were."""
        if not self._idle_timeout:
            return 0
        limit, count = self._clock() - self._idle_timeout, 0
        with self._lock:
            idle = {h: i for h, i in self._open.items() if i.used < limit and not i.lock.locked()}
        for handle, instance in idle.items():
            if not instance.lock.acquire(blocking=False):
                continue
            try:
                with self._lock:
                    mine = instance.used < limit and self._open.get(handle) is instance
                    if mine:
                        del self._open[handle]
                if mine:
                    self._shut(handle, instance)
                    count += 1
            finally:
                instance.lock.release()
        return count

    def close_all(self, seconds: float) -> int:
        """Closes everything within some seconds, and takes no more; returns how many were still at work then."""
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

    def _shut(self, handle: int, instance: Instance) -> None:
        try:
            instance.env.close()
        except Exception:
            _log.exception("closing instance %d failed", handle)
