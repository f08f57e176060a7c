"""Environments in threads of this process: each lives in one thread from its construction to `close`."""

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agentrl_jax.environments import values
from agentrl_jax.environments.protocol import HostStep, Traits
from agentrl_jax.environments.watchdog import Watchdog
from agentrl_jax.errors import MAX_FOREIGN, BadValue, counted, shortened


class Failed(BadValue):
    """An environment, or its class, raised or returned what it must not; the message names class, method and reason."""


class Hung(TimeoutError):
    """A call did not return within its deadline."""


class Threads:
    """Makes environments of one class. Thread-safe; calls on different environments run at the same time.

    A thread whose call does not return is abandoned, since Python cannot end it. After `most_abandoned` of them no
    environment is made any more.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Any],
        traits: Traits,
        *,
        seconds: float,
        most_abandoned: int,
        watchdog: Watchdog,
    ):
        """Makes nothing yet. `name` is that of the class, `seconds` the time that a call of `reset` or `step` has."""
        self.name, self.traits = name, traits
        self._make, self._seconds, self._watchdog = make, seconds, watchdog
        self._most, self._lock = most_abandoned, threading.Lock()
        self.abandoned = 0
        self._shared = _Thread(name) if traits.one_thread else None
        self._free: list[_Bound] = []

    def open(self) -> "_Bound":
        """An environment that is ready for `reset`; raises `Failed` if its constructor fails or threads are used up."""
        with self._lock:
            if self._free:
                return self._free.pop()
            if self.abandoned >= self._most:
                why = f"{counted(self.abandoned, 'thread')} did not return from {self.name} and cannot be ended"
                raise Failed(f"{why}; let its calls end, or run it in processes, which can be killed", key=self.name)
        bound = _Bound(self, self._shared or _Thread(self.name))
        try:
            bound.run("__init__", self._make, None)
        except BaseException:
            bound.end()
            raise
        return bound

    def log_to(self, log: Path) -> None:
        """Does nothing: environments print where this process does."""

    def close(self) -> None:
        """Closes the environments that wait for another episode."""
        with self._lock:
            free, self._free = self._free, []
        for bound in free:
            bound.end()
        self._watchdog.close()


class _Bound:
    """An environment in its thread."""

    def __init__(self, pool: Threads, thread: "_Thread"):
        self._pool, self._thread = pool, thread
        self._env: Any = None
        self._hangs = False

    def reset(self, seed: int) -> str:
        where = f"{self._pool.name}.reset"
        return self.run("reset", lambda: values.text(self._env.reset(seed), where), self._pool._seconds)

    def step(self, response: str, actions: Sequence[str]) -> HostStep:
        where, keys = f"{self._pool.name}.step", self._pool.traits.info_keys
        call = lambda: values.step(self._env.step(response, actions), where, keys)  # noqa: E731
        return self.run("step", call, self._pool._seconds)

    def plan(self) -> Sequence[str]:
        return self.run(
            "plan", lambda: values.actions(self._env.plan(), f"{self._pool.name}.plan"), self._pool._seconds
        )

    def content(self, item: int) -> str:
        where = f"{self._pool.name}.content"
        return self.run("content", lambda: values.text(self._env.content(item), where), self._pool._seconds)

    def close(self) -> None:
        """Keeps the environment for another episode, or closes it; does not wait."""
        if self._pool.traits.reuse and not self._hangs:
            with self._pool._lock:
                self._pool._free.append(self)
        else:
            self.end()

    def end(self) -> None:
        """Closes the environment and ends its thread, without waiting for either."""
        if self._env is not None:
            self._thread.post(self._env.close)
        if self._thread is not self._pool._shared:
            self._thread.post(None)

    def run(self, method: str, call: Callable[[], Any], seconds: float | None) -> Any:
        """The result of a call in the environment's thread."""
        pool, where = self._pool, f"{self._pool.name}.{method}"
        answer: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

        def work() -> None:
            with pool._watchdog.watching(where):
                try:
                    answer.put((True, call()))
                except BaseException as error:  # SystemExit too: it would end this thread alone
                    answer.put((False, error))

        self._thread.post(work)
        try:
            good, found = answer.get(timeout=seconds)
        except queue.Empty:
            self._hangs = True
            with pool._lock:
                pool.abandoned += 1
                if self._thread is pool._shared:
                    pool._shared = _Thread(pool.name)
            raise Hung(f"{where} did not return within {seconds:g} s; its thread is abandoned") from None
        if not good:
            if isinstance(found, values.WrongReturn):
                raise Failed(str(found), key=where) from found
            why = f"{type(found).__name__}: {shortened(found, MAX_FOREIGN)}"
            raise Failed(f"{where}: {why}", key=where) from found
        if method == "__init__":
            self._env = found
        return found


class _Thread:
    """A thread that runs what it is given, one after the other."""

    def __init__(self, name: str):
        self._jobs: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name=f"environment {name}").start()

    def post(self, job: Callable[[], Any] | None) -> None:
        """Adds a job; None ends the thread after those before it."""
        self._jobs.put(job)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException:  # of `close`, whose result nobody waits for
                continue
