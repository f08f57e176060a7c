"""A service in a process of its own, which is started when it is needed and again when it dies."""

import json
import logging
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

from agentrl_jax.services.client import ServiceError

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
MOST_RESTARTS = 20


class ServiceProcess:
    """`agentrl serve` for one environment. Safe in threads.

    The process ends with this one, however this one ends: it watches its standard input, which then closes.

    Attributes:
        log: file with what the process says.
    """

    def __init__(self, env: str, log: Path, *, max_instances: int, start_seconds: float = 120.0):
        """Starts nothing yet.

        Args:
            env: name of the environment.
            log: file for what it says; its folder has to be there when it starts.
            max_instances: instances that it may have open.
            start_seconds: that it may take until it listens.
        """
        self.log = log
        self._env, self._max_instances, self._start_seconds = env, max_instances, start_seconds
        self._process: subprocess.Popen[str] | None = None
        self._url = ""
        self._ended = False
        self._lock = threading.Lock()

    def url(self) -> str:
        """Its address; starts it first if it does not run yet.

        Raises:
            ServiceError: it ends, or does not listen in time.
        """
        with self._lock:
            if self._ended:
                raise ServiceError(f"the service {self._env} has been closed")
            if not self._url:
                self._url = self._start("0")
                threading.Thread(target=self._watch, daemon=True, name=f"service-{self._env}").start()
            return self._url

    @property
    def pid(self) -> int | None:
        """Of the process, while there is one."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def close(self) -> None:
        """Ends the process, for good."""
        self._ended = True
        process = self._process
        if process is None:
            return
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _start(self, port: str) -> str:
        words = [sys.executable, "-m", "agentrl_jax", "serve", self._env, "--port", port, "--announce"]
        words += ["--max_instances", str(self._max_instances)]
        with open(self.log, "a", encoding="utf-8") as log:
            self._process = process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                process_group=0,  # Ctrl-C in the terminal is for this process, which then ends the other
                # What is compiled there is small, and the accelerators are this process's.
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
            )
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        said = process.stdout
        assert said is not None
        threading.Thread(target=lambda: lines.put(said.readline()), daemon=True).start()
        try:
            line = lines.get(timeout=self._start_seconds)
            return json.loads(line)["url"]
        except (queue.Empty, ValueError, KeyError, TypeError):
            process.kill()
            process.wait()
            told = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = told[-1] if told else "it said nothing"
            raise ServiceError(f"the service {self._env} did not start: {last} (see {self.log})") from None

    def _watch(self) -> None:
        restarts = 0
        while not self._ended:
            time.sleep(POLL_SECONDS)
            process = self._process
            if self._ended or process is None or process.poll() is None:
                continue
            if restarts == MOST_RESTARTS:
                _log.error("the service %s has ended %d times and is not started again", self._env, restarts)
                return
            restarts += 1
            _log.warning("the service %s has ended (status %s); starting it again", self._env, process.returncode)
            try:
                self._start(self._url.rpartition(":")[2])
            except ServiceError as error:
                _log.warning("%s", error)
            if self._ended:
                self.close()
