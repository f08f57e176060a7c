"""A service in a separate process, which is started on demand and restarted when it dies or hangs."""

import json
import logging
import os
import queue
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path

from agentrl_jax.services.client import ServiceClient, ServiceError
from agentrl_jax.services.protocol import COMPILED

_log = logging.getLogger(__name__)

POLL_SECONDS = 0.2
MAX_RESTARTS = 20

HEALTH_SECONDS = 5.0
"""Seconds between two health checks."""

MAX_FAILED_HEALTH_CHECKS = 2
"""Failed health checks in a row after which the process counts as hung. One alone may have failed because this process
itself was paused."""


class ServiceProcess:
    """`agentrl serve` for one environment. Thread-safe.

    The server process always ends with this one: it watches its standard input, which closes when this process ends in
    any way. It answers only requests with `token`, which it gets through a pipe, so that the token appears in no
    process list, environment variable or file. `restarts` counts its restarts.
    """

    def __init__(
        self,
        env: str,
        log: Path,
        *,
        max_instances: int,
        start_seconds: float = 120.0,
        answer_seconds: float = 20.0,
        token: str | None = None,
        upstream: bool = False,
    ):
        """Starts no process yet; the folder of `log` has to exist when it starts.

        It has to listen within `start_seconds`; after `answer_seconds` without an answer it is killed and restarted.
        `token` is the bearer token of requests: None for a new one, empty to serve everybody. `upstream` is that of
        `Service.make`.
        """
        self.log = log
        self.token = secrets.token_urlsafe(32) if token is None else token
        self.restarts = 0
        self._answer_seconds, self._upstream = answer_seconds, upstream
        self._env, self._max_instances, self._start_seconds = env, max_instances, start_seconds
        self._process: subprocess.Popen[str] | None = None
        self._url = ""
        self._ended = False
        self._lock = threading.Lock()

    def url(self) -> str:
        """Its address; starts the process if it is not running, and raises `ServiceError` if it does not start."""
        with self._lock:
            if self._ended:
                raise ServiceError(f"the service {self._env} has been closed")
            if not self._url:
                self._url = self._start("0")
                threading.Thread(target=self._watch, daemon=True, name=f"service-{self._env}").start()
            return self._url

    def close(self) -> None:
        """Ends the process; it is not restarted."""
        self._ended = True
        process = self._process  # `_watch` may replace it meanwhile
        if process is None:
            return
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            _kill(process)

    def _start(self, port: str) -> str:
        words = [sys.executable, "-m", "agentrl_jax", "serve", self._env, "--port", port, "--announce"]
        words += ["--max_instances", str(self._max_instances), *(["--compat", "upstream"] if self._upstream else [])]
        if not self.token:
            return self._listening(self._open(words))
        reading, writing = os.pipe()
        try:
            with open(writing, "w", encoding="ascii") as pipe:
                pipe.write(self.token)
            process = self._open([*words, "--token_file", f"/dev/fd/{reading}"], reading)
        finally:
            os.close(reading)
        return self._listening(process)

    def _listening(self, process: subprocess.Popen[str]) -> str:
        """The address of a process, as soon as it listens."""
        self._process = process
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        output = process.stdout
        assert output is not None
        threading.Thread(target=lambda: lines.put(output.readline()), daemon=True).start()
        try:
            return json.loads(lines.get(timeout=self._start_seconds))["url"]
        except (queue.Empty, ValueError, KeyError, TypeError):
            _kill(process)
            logged = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = logged[-1] if logged else "its log is empty"
            raise ServiceError(f"the service {self._env} did not start: {last} (see {self.log})") from None

    def _open(self, words: list[str], *inherited: int) -> subprocess.Popen[str]:
        with open(self.log, "a", encoding="utf-8") as log:
            return subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                pass_fds=inherited,
                process_group=0,  # Ctrl-C in the terminal goes to this process, which then ends the other
                # Little is compiled there, and the accelerators belong to this process.
                env={**os.environ, "JAX_PLATFORMS": "cpu"},
            )

    def _watch(self) -> None:
        health = ServiceClient(self._url, COMPILED, connections=1)
        checked, missed = time.monotonic(), 0
        while not self._ended:
            time.sleep(POLL_SECONDS)
            process = self._process
            if self._ended or process is None:
                continue
            failure = "has ended"
            if process.poll() is None:
                if time.monotonic() < checked + min(HEALTH_SECONDS, self._answer_seconds):
                    continue
                missed = 0 if health.healthy(self._answer_seconds / MAX_FAILED_HEALTH_CHECKS) else missed + 1
                checked = time.monotonic() - (HEALTH_SECONDS if missed else 0.0)  # the second check follows at once
                if missed < MAX_FAILED_HEALTH_CHECKS or self._ended or process.poll() is not None:
                    continue
                _kill(process)
                failure = f"did not answer within {self._answer_seconds:g} s"
            if self.restarts == MAX_RESTARTS:
                _log.error("the service %s %s; after %d restarts it is given up", self._env, failure, self.restarts)
                break
            self.restarts, missed = self.restarts + 1, 0
            _log.warning("the service %s %s (status %s); starting it again", self._env, failure, process.returncode)
            try:
                self._start(self._url.rpartition(":")[2])
            except ServiceError as error:
                _log.warning("%s", error)
            checked = time.monotonic()
            if self._ended:
                self.close()
        health.close()


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
