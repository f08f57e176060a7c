"""Environments in processes of their own, which can be killed: our own subprocesses that speak lines of JSON."""

import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_jax.environments.protocol import HostStep, Traits
from agentrl_jax.environments.threads import Failed, Hung
from agentrl_jax.environments.watchdog import Watchdog

START_SECONDS = 120.0
"""Time for a process to start and to import the user's module, which may import much."""

MOVES = 3
"""How often a call may find that another environment has ended its process."""


class Gone(Failed):
    """The process had ended before the call, because of another environment."""


class Processes:
    """Makes environments of one class in at most `number` processes. Thread-safe.

    A process whose call does not return in time is killed with all that it started, and replaced. Episodes of other
    environments in it are played again in another process, up to where they were, if they are deterministic; otherwise
    they fail too.
    """

    def __init__(
        self,
        path: str,
        options: Mapping[str, Any],
        *,
        number: int,
        seconds: float,
        watchdog: Watchdog,
    ):
        """Starts a process to read the traits of `path`, which is `module:Class`; raises `Failed` if there is none.

        What environments print is lost, until `log_to` says where it goes.
        """
        self.name = path.partition(":")[2]
        self._path, self._options, self._number = path, dict(options), number
        self._seconds, self._watchdog = seconds, watchdog
        self._log = Path(os.devnull)
        self._running = [_Process(self._log, watchdog)]
        self._free: list[_Bound] = []
        self._lock = threading.Lock()
        self._closed = False
        try:
            self.traits = Traits(**_with_tuples(self._running[0].load(path)))
        except BaseException:
            self.close()
            raise

    def log_to(self, log: Path) -> None:
        """Ends the processes so far; later ones append what they print to this file."""
        self._log = log
        self._end_all()

    def open(self) -> "_Bound":
        """An environment that is ready for `reset`; raises `Failed` if the import or its constructor fails."""
        with self._lock:
            self._free = [bound for bound in self._free if not bound.process.ended]
            if self._free:
                return self._free.pop()
        bound = _Bound(self)
        bound.enter()
        return bound

    def process(self) -> "_Process":
        """A process for one more environment."""
        with self._lock:
            if self._closed:
                raise Failed(f"the processes of {self.name} are closed", key=self.name)
            self._running = [process for process in self._running if not process.ended]
            process = min(self._running, key=lambda each: each.environments, default=None)
            if process is None or len(self._running) < self._number or (self.traits.alone and process.environments):
                process = _Process(self._log, self._watchdog)
                self._running.append(process)
            process.environments += 1
        process.load(self._path)
        return process

    def close(self) -> None:
        """Ends all processes."""
        self._closed = True
        self._end_all()
        self._watchdog.close()

    def _end_all(self) -> None:
        with self._lock:
            running, self._running, self._free = self._running, [], []
        for process in running:
            process.kill()


class _Bound:
    """An environment in its process."""

    _numbers = itertools.count()

    def __init__(self, pool: Processes):
        self._pool = pool
        self._played: list[tuple[Any, ...]] = []
        """The calls of this episode that have been answered."""

    def enter(self) -> None:
        """Makes the environment in a process, and plays there what has been played."""
        self.process, self._number = self._pool.process(), next(self._numbers)
        try:
            self._ask("__init__", self._pool._options, seconds=START_SECONDS)
            for call in self._played:
                self._ask(*call)
        except BaseException:
            self._leave()
            raise

    def reset(self, seed: int) -> str:
        self._played = []
        return self.call("reset", seed)

    def step(self, response: str, actions: Sequence[str]) -> HostStep:
        return HostStep(**self.call("step", response, list(actions)))

    def plan(self) -> Sequence[str]:
        return self.call("plan")

    def content(self, item: int) -> str:
        return self.call("content", item)

    def close(self) -> None:
        if self._pool.traits.reuse and not self.process.ended:
            with self._pool._lock:
                self._pool._free.append(self)
            return
        threading.Thread(target=self._end, daemon=True).start()  # must not wait for a call of another environment

    def call(self, method: str, *arguments: Any) -> Any:
        for _ in range(MOVES):
            try:
                found = self._ask(method, *arguments)
                break
            except Gone:
                if self._played and not self._pool.traits.deterministic:
                    raise
                self.enter()
        else:
            found = self._ask(method, *arguments)
        if method in ("reset", "step"):
            self._played.append((method, *arguments))
        return found

    def _ask(self, method: str, *arguments: Any, seconds: float | None = None) -> Any:
        limit = self._pool._seconds if seconds is None else seconds
        return self.process.ask(f"{self._pool.name}.{method}", method, self._number, arguments, limit)

    def _end(self) -> None:
        with contextlib.suppress(Failed, Hung):
            self._ask("close")
        self._leave()

    def _leave(self) -> None:
        with self._pool._lock:
            self.process.environments -= 1


class _Process:
    """A process with some environments, of which one runs at a time."""

    def __init__(self, log: Path, watchdog: Watchdog):
        self.environments = 0
        self.ended = False
        self._why = ""
        self._loaded: dict[str, Any] | None = None
        self._log, self._watchdog = log, watchdog
        self._lock = threading.Lock()
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        with open(log, "ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "agentrl_jax.environments.worker_main", json.dumps(sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                # So that it is killed with all that it starts. That the run has ended, in any way, is seen by the
                # watchdog: the kernel's signal for it comes when the thread ends that has started the process.
                start_new_session=True,
            )
        watchdog.group(self._process.pid)
        threading.Thread(target=self._read, daemon=True).start()

    def load(self, path: str) -> dict[str, Any]:
        """Imports the class, once, and returns its traits."""
        if self._loaded is None:
            self._loaded = self.ask(f"import of {path}", "import", -1, (path,), START_SECONDS)
        return self._loaded

    def ask(self, where: str, do: str, number: int, arguments: Sequence[Any], seconds: float) -> Any:
        """The answer to a call; kills the process if there is none in time."""
        end = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds):
            raise Hung(f"{where} waited {seconds:g} s for another call in its process; use more processes")
        try:
            if self.ended:
                raise Gone(f"{where}: its process has ended: {self._why}", key=where)
            line = json.dumps({"do": do, "env": number, "arguments": arguments}).encode() + b"\n"
            try:
                assert self._process.stdin is not None
                self._process.stdin.write(line)
                self._process.stdin.flush()
                answer = self._lines.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                self.kill(f"{where} did not return within {seconds:g} s")
                raise Hung(f"{self._why}; its process was killed") from None
            except OSError:
                answer = b""
            if not answer:
                self.kill(f"{where}: the process ended with {self._process.wait()}, see {self._log}")
                raise Failed(self._why, key=where)
        finally:
            self._lock.release()
        found = json.loads(answer)
        if "failed" in found:
            raise Failed(found["failed"], key=where)
        return found["value"]

    def kill(self, why: str = "closed") -> None:
        """Kills the process and all that it started."""
        self.ended, self._why = True, why
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._watchdog.gone(self._process.pid)

    def _read(self) -> None:
        output = self._process.stdout
        assert output is not None
        for line in iter(output.readline, b""):  # lines end at LF only
            self._lines.put(line)
        self._lines.put(b"")


def _with_tuples(found: dict[str, Any]) -> dict[str, Any]:
    """Traits from JSON, which has lists in place of tuples."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
