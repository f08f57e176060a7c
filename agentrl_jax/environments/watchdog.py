"""A process beside the run that ends what the run cannot end itself.

It kills the processes of environments when the run has ended in any way. And it ends a run in which an environment in a
thread keeps Python's lock: no other thread of the run could then notice, nor say, that it hangs.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

BEAT_SECONDS = 1.0


class Watchdog:
    """The run's side. Starts the process with the first thing to watch; thread-safe."""

    def __init__(self, seconds: float):
        """`seconds` without a sign of life, while calls in threads are running, end the run."""
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._calls: dict[int, str] = {}
        self._closed = False
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def watching(self, where: str) -> Iterator[None]:
        """A call that runs in this thread, such as `Guess.step`."""
        number = threading.get_ident()
        self._tell({"begin": number, "where": where})
        self._calls[number] = where
        try:
            yield
        finally:
            del self._calls[number]
            self._tell({"end": number})

    def group(self, leader: int) -> None:
        """Adds a group of processes, which ends with the run."""
        self._tell({"group": leader})

    def gone(self, leader: int) -> None:
        """Removes a group."""
        self._tell({"gone": leader})

    def close(self) -> None:
        """Ends the process, and the groups that are left."""
        with self._lock:
            process, self._process, self._closed = self._process, None, True
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait()

    def _tell(self, message: dict[str, object]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            if self._closed:
                return
            if self._process is None:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",
                        "-m",
                        "agentrl_jax.environments.watchdog",
                        str(os.getpid()),
                        str(self._seconds),
                    ],
                    stdin=subprocess.PIPE,
                    start_new_session=True,
                )
                threading.Thread(target=self._beat, daemon=True, name="watchdog").start()
            assert self._process.stdin is not None
            with contextlib.suppress(OSError):
                self._process.stdin.write(line)
                self._process.stdin.flush()

    def _beat(self) -> None:
        while self._process is not None:
            if self._calls:
                self._tell({"beat": 0})
            time.sleep(BEAT_SECONDS)


def main(run: int, seconds: float) -> None:
    """Watches the run with this process id, which writes to descriptor 0."""
    groups: set[int] = set()
    calls: dict[int, str] = {}
    waiting, heard = b"", time.monotonic()
    try:
        while True:
            ready, _, _ = select.select([0], [], [], BEAT_SECONDS)
            if ready:
                data = os.read(0, 2**16)
                if not data:
                    return
                *lines, waiting = (waiting + data).split(b"\n")
                heard = time.monotonic()
                for line in lines:
                    _note(json.loads(line), groups, calls)
            elif calls and _is_stopped(run):
                heard = time.monotonic()
            elif calls and time.monotonic() - heard > seconds:
                names = ", ".join(sorted(set(calls.values())))
                print(
                    f"agentrl: {names} has kept Python's lock for {seconds:g} s, so that nothing else can run; the run "
                    "ends. Run the environment in processes, or let it give the lock back.",
                    file=sys.stderr,
                    flush=True,
                )
                os.kill(run, signal.SIGKILL)
                return
    finally:
        for leader in groups:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(leader, signal.SIGKILL)


def _is_stopped(process: int) -> bool:
    """Whether a process is stopped by a signal, as by Ctrl-Z; False where that is not known."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except (OSError, IndexError):
        return False


def _note(message: dict[str, object], groups: set[int], calls: dict[int, str]) -> None:
    for name, value in message.items():
        if name == "begin":
            calls[value] = str(message["where"])  # type: ignore[index]
        elif name == "end":
            calls.pop(value, None)  # type: ignore[call-overload]
        elif name == "group":
            groups.add(value)  # type: ignore[arg-type]
        elif name == "gone":
            groups.discard(value)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
