"""Java processes that run ScienceWorld's simulator, and a pool that reuses them.

Measured with scienceworld 1.2.3 and Java 17 on two shared cores: a process starts in about 1.3 s, plays about 75 steps
a second, and takes 130 to 230 MB; with Java's default heap it grew to 700 MB.
"""

import atexit
import importlib.util
import os
import shutil
import subprocess
import threading
from typing import IO, Any

from agentrl_jax.services.environment import MissingPackageError
from agentrl_jax.services.texts import cut

HEAP = 128
"""Largest Java heap of a simulator, MB. An episode keeps about 20 MB alive; a gold-path search takes far more."""

SILENCE = 120.0
"""Seconds after which a simulator that does not answer is abandoned."""


def find_java() -> str:
    """Path of the Java runtime, from JAVA_HOME or else PATH.

    Raises a `MissingPackageError` if it, scienceworld or py4j is missing.
    """
    for package in ("scienceworld", "py4j"):
        if importlib.util.find_spec(package) is None:
            raise MissingPackageError(
                f"SciWorld needs the Python package {package}, which is not installed; run `pip install "
                "scienceworld==1.2.3`",
                key=package,
            )
    home = os.environ.get("JAVA_HOME")
    java = (shutil.which(os.path.join(home, "bin", "java")) if home else None) or shutil.which("java")
    if java is None:
        raise MissingPackageError(
            "SciWorld needs a Java runtime, and neither JAVA_HOME nor PATH leads to one; install one, on Debian with "
            "`apt-get install default-jre-headless`",
            key="Java",
        )
    return java


class Simulator:
    """One Java process with one episode at a time; for one thread at a time.

    The process ends when its standard input closes, so it also ends when Python is killed by any signal. A child
    process that Python forked meanwhile keeps it alive as long as that child lives.
    """

    def __init__(self, heap: int = HEAP):
        """Starts the process with a largest heap in MB; `RuntimeError` if Java does not start, and as `find_java`."""
        java = find_java()
        from py4j.java_gateway import find_jar_path  # installed with this environment only
        from scienceworld.constants import BASEPATH, JAR_PATH

        self.broken = False
        # ScienceWorldEnv's own launch passes no Java options and leaves the port, which can run any code, without a
        # token. Sets in the simulator are ordered by identity hash: a constant one (2) makes equal actions on equal
        # items give equal answers. A separate process group shields it from Ctrl-C, which Python has to handle.
        self._process = subprocess.Popen(
            [
                *(java, f"-Xmx{heap}m", "-XX:+UseSerialGC", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2"),
                *("-classpath", os.pathsep.join((find_jar_path(), JAR_PATH)), "py4j.GatewayServer"),
                *("--die-on-broken-pipe", "--enable-auth", "0"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=BASEPATH,
            process_group=0,
            text=True,
            errors="replace",
        )
        try:
            self._connect()
        except BaseException:
            self._end()
            raise

    @property
    def alive(self) -> bool:
        """Whether it can still be used."""
        return not self.broken and self._process.poll() is None

    def ask(self, method: str, *arguments: str | int | bool) -> Any:
        """Calls a method of ScienceWorld's PythonInterface; arrays come back as lists. A `RuntimeError` is final."""
        self.broken = True  # until the whole answer has arrived
        try:
            answer = getattr(self._server, method)(*arguments)
            if not (answer is None or isinstance(answer, (str, bool, int, float))):
                proxy, answer = answer, list(answer)
                self._gateway.detach(proxy)
        except Exception as error:
            reason = cut(" ".join(str(error).splitlines()[:2]))  # a Java stack follows
            raise RuntimeError(f"ScienceWorld's simulator failed in {method}: {reason}; reset the episode") from error
        self.broken = False
        return answer

    def close(self) -> None:
        """Ends the process; nothing in it needs saving. May be called from any thread, repeatedly."""
        self.broken = True
        self._gateway.close()
        self._end()

    def _connect(self) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway

        out = self._process.stdout
        assert out is not None
        printed: list[str] = []
        for line in out:
            if line.strip().isdigit():  # the port; Java's warnings may come first
                break
            printed.append(line.strip())
        else:
            raise RuntimeError(f"Java ended with status {self._process.wait()} and printed: {' '.join(printed)[:500]}")
        port, token = int(line), out.readline().strip()
        # A pipe that nobody reads would block the simulator once full.
        threading.Thread(target=_read_out, args=(out,), name="sciworld-output", daemon=True).start()
        # Without py4j's memory management no finalizer contacts an ended process; `ask` detaches objects itself.
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(
                port=port, auth_token=token, read_timeout=SILENCE, enable_memory_management=False
            )
        )
        self._server = self._gateway.jvm.scienceworld.runtime.pythonapi.PythonInterface()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def _read_out(stream: IO[str]) -> None:
    with stream:
        for _ in stream:
            pass


class Pool:
    """Starts simulators on demand, and keeps at most `idle` returned ones for reuse. Thread-safe.

    All simulators, idle or not, end when the pool is closed and when Python exits. `heap` is the largest Java heap of
    each, in MB.
    """

    def __init__(self, *, idle: int = 4, heap: int = HEAP):
        self._max_idle, self._heap = idle, heap
        self._idle: list[Simulator] = []
        self._lent: set[Simulator] = set()
        self._lock = threading.Lock()
        self._closed = False
        atexit.register(self.close)

    def take(self) -> Simulator:
        """A simulator for exclusive use, maybe with an earlier episode in it; `RuntimeError` if the pool is closed."""
        while simulator := self._take_idle():
            if simulator.alive:
                return simulator
            self.give(simulator)  # ended by someone else while it was idle
        if not self._closed:
            simulator = Simulator(self._heap)
            with self._lock:
                if not self._closed:
                    self._lent.add(simulator)
                    return simulator
            simulator.close()
        raise RuntimeError("the pool of simulators is closed; make another one")

    def _take_idle(self) -> Simulator | None:
        with self._lock:
            simulator = self._idle.pop() if self._idle else None
            if simulator:
                self._lent.add(simulator)
        return simulator

    def give(self, simulator: Simulator) -> None:
        """Takes a simulator back; a failed one is ended."""
        with self._lock:
            self._lent.discard(simulator)
            keep = not self._closed and simulator.alive and len(self._idle) < self._max_idle
            if keep:
                self._idle.append(simulator)
        if not keep:
            simulator.close()

    def close(self) -> None:
        """Ends all simulators; none can be taken afterwards."""
        with self._lock:
            self._closed = True
            simulators = [*self._idle, *self._lent]
            self._idle.clear()
            self._lent.clear()
        for simulator in simulators:
            simulator.close()
        atexit.unregister(self.close)
