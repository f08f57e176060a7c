"""Pools of service instances: behind a client, or in this process.

A pool hands out leases: instances at the start of an item's episode. It keeps healthy instances that are returned, for
further episodes. The bridge (`services.bridge`) decides what to do when a lease is lost.
"""

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Iterator
from typing import Protocol

from agentrl_jax.rollout.envs.concurrency import run_all
from agentrl_jax.services.client import Lost, ServiceClient
from agentrl_jax.services.environment import ItemError, Service, ServiceEnvironment, StepResult
from agentrl_jax.services.protocol import routes_of

CLOSE_SECONDS, CLOSERS = 10.0, 16
"""Seconds allowed for closing all free instances, and how many are closed at once."""


class InstancePool(Protocol):
    """Instances of a service, behind a client or in this process. Thread-safe."""

    def open(self, item: int, deadline: float) -> "Lease":
        """Returns an instance at the start of an item's episode; raises `Lost` if none is available by the deadline."""


class Lease(Protocol):
    """An instance with an episode in progress; `first` is its answer to the reset."""

    first: StepResult

    def step(self, action: str, deadline: float) -> StepResult:
        """Plays an action; raises `Lost` if the instance can no longer be trusted."""

    def screenshot(self, deadline: float) -> str:
        """A picture as a data URL, of a service that has `RouteSpec.screenshot`; `ServiceError` if it gives none."""

    def leave(self, *, good: bool) -> None:
        """Returns the instance to the pool, which reuses it if `good`. Does not block."""


class RemotePool:
    """Instances behind a client, reused for further episodes.

    A restarted server gives out the same handles again, for other instances. When a known handle comes back, a new
    epoch begins: all earlier handles count as lost, so that no episode continues in another one's instance.
    """

    def __init__(self, client: ServiceClient):
        """Opens no instance yet."""
        self.client = client
        self._free: list[int] = []
        self._known: set[int] = set()
        self._epoch = 0
        self._lock = threading.Lock()

    def open(self, item: int, deadline: float) -> "_RemoteLease":
        """See `InstancePool`. A free instance that the server has forgotten is dropped silently."""
        while True:
            with self._lock:
                reused = bool(self._free)
                handle, epoch = self._free.pop() if reused else -1, self._epoch
            if not reused:
                handle, epoch = self._create(item, deadline)
            try:
                first = self.client.reset(handle, item, deadline=deadline)
                self.check(epoch)
                return _RemoteLease(self, handle, epoch, first)
            except BaseException as error:
                self.drop(handle, epoch)
                if not reused or not isinstance(error, Lost) or time.monotonic() >= deadline:
                    raise

    def check(self, epoch: int) -> None:
        """Raises `Lost` for an instance from before the server's last restart."""
        if epoch != self._epoch:
            raise Lost(f"{self.client.url}: the server has been restarted")

    def close(self) -> None:
        """Closes the free instances and the connections."""
        with self._lock:
            free, self._free = self._free, []
        run_all([functools.partial(self.client.shut, handle) for handle in free], CLOSE_SECONDS, CLOSERS)
        self.client.close()

    def keep(self, handle: int, epoch: int) -> None:
        """Takes an instance back for reuse."""
        with self._lock:
            if epoch == self._epoch:
                self._free.append(handle)

    def drop(self, handle: int, epoch: int) -> None:
        """Closes an instance in the background; failures do not matter."""
        if epoch == self._epoch:
            threading.Thread(target=self.client.shut, args=(handle,), daemon=True).start()

    def _create(self, item: int, deadline: float) -> tuple[int, int]:
        handle = self.client.create(item, deadline=deadline)
        with self._lock:
            if handle in self._known:
                self._epoch += 1
                self._free.clear()
                self._known.clear()
            self._known.add(handle)
            return handle, self._epoch


@dataclasses.dataclass
class _RemoteLease:
    pool: RemotePool
    handle: int
    epoch: int
    first: StepResult

    def step(self, action: str, deadline: float) -> StepResult:
        self.pool.check(self.epoch)
        answer = self.pool.client.step(self.handle, action, deadline=deadline)
        self.pool.check(self.epoch)
        return answer

    def screenshot(self, deadline: float) -> str:
        self.pool.check(self.epoch)
        return self.pool.client.screenshot(self.handle, deadline=deadline)

    def leave(self, *, good: bool) -> None:
        (self.pool.keep if good else self.pool.drop)(self.handle, self.epoch)


class LocalPool:
    """Instances in this process, without HTTP. An instance that raises counts as lost."""

    def __init__(self, service: Service, *, upstream: bool = False):
        """Creates no instance yet; `upstream` is that of `Service.make`."""
        self._service, self._upstream = service, upstream
        self._free: list[ServiceEnvironment] = []
        self._lock = threading.Lock()

    def open(self, item: int, deadline: float) -> "_LocalLease":
        """See `InstancePool`."""
        with self._lock:
            env = self._free.pop() if self._free else None
        env = self._service.make(self._upstream) if env is None else env
        try:
            with _as_lost():
                return _LocalLease(self, env, routes_of(self._service.name).first_result(env.reset(item)))
        except BaseException:
            env.close()
            raise

    def close(self) -> None:
        """Closes the free instances."""
        with self._lock:
            free, self._free = self._free, []
        for env in free:
            env.close()

    def screenshot(self, env: ServiceEnvironment) -> str:
        """A picture of an instance, by the method that has the name of the server's route."""
        route = routes_of(self._service.name).screenshot
        assert route is not None
        found: str = getattr(env, route[1])()
        return found

    def keep(self, env: ServiceEnvironment) -> None:
        """Takes an instance back for reuse."""
        with self._lock:
            self._free.append(env)


@dataclasses.dataclass
class _LocalLease:
    pool: LocalPool
    env: ServiceEnvironment
    first: StepResult

    def step(self, action: str, deadline: float) -> StepResult:
        with _as_lost():
            return self.env.step(action)

    def screenshot(self, deadline: float) -> str:
        with _as_lost():
            return self.pool.screenshot(self.env)

    def leave(self, *, good: bool) -> None:
        if good:
            self.pool.keep(self.env)
        else:
            threading.Thread(target=self.env.close, daemon=True).start()


@contextlib.contextmanager
def _as_lost() -> Iterator[None]:
    try:
        yield
    except ItemError:
        raise
    except Exception as error:
        raise Lost(f"{type(error).__name__}: {error}") from error
