"""The processes of a run on several hosts: how they start, and how they agree.

Every process runs the same code on its own devices, so all must take the same decisions: what one process reads or
hears (files, signals, failures of services) is shared before it decides anything. Process 0, the writer, alone writes
files and prints. With one process every function here is trivial.
"""

import contextlib
import errno
import hashlib
import json
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from agentrl_jax import stopping
from agentrl_jax.config import HostsConfig
from agentrl_jax.errors import MAX_FOREIGN, UserError, shortened
from agentrl_jax.io import sentence
from agentrl_jax.parallel import clusters

HEARTBEAT_SECONDS = 30
"""A process that has sent no heartbeat for so long counts as dead, and the others end."""

_COLLECTIVES = ("Gloo", "NCCL")

_SIGNS_OF_LOSS = (
    *_COLLECTIVES,
    "Connection closed",
    "Connection reset",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "coordination",
)
"""What errors say that a collective raises when another process has ended; JAX gives them several types."""

SETTLE_SECONDS = 1.0
"""Seconds from a lost connection to its sentence.

In them JAX prints its own message, a lost process closes its port, and a thread that knows the cause, such as an error
that all processes raise, may end this process with that."""

PROBE_SECONDS = 2.0
"""Seconds in which process 0 accepts a connection if it is there."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

DETECT = "auto"
"""Value of `hosts.coordinator` with which the processes are detected, see `clusters`."""

SHUTDOWN_SECONDS = 24 * 3600
"""Seconds that processes which have ended their work wait for the others: one of them may still read back and copy a
large checkpoint, and JAX ends all of them when the time is over. One that has died is noticed by its heartbeats."""

CONNECT_SECONDS = 300
"""How long a process waits at the start for the others."""

NOTE_SECONDS = 30.0
"""Seconds after which a process says that it waits."""


def start(config: HostsConfig) -> HostsConfig:
    """Connects this process with the others of its run; call it before any other use of JAX.

    Returns at once if the configuration names no coordinator. Waits up to five minutes for the others; if some are
    still missing then, JAX aborts this process, which ends with a sentence. Returns the processes: the configuration,
    or what was detected.

    Raises:
        UserError: the port of process 0 is in use, the coordinator cannot be reached, or no cluster is detected.
    """
    if not config.coordinator:
        return config
    devices = None
    if config.coordinator == DETECT:
        config, devices = clusters.detect(CONNECT_SECONDS)
    host, _, port = config.coordinator.rpartition(":")
    bind = os.environ.get("JAX_COORDINATOR_BIND_ADDRESS", f"[::]:{port}")  # JAX's own default
    if host in LOOPBACK:
        bind = config.coordinator
    if config.index == 0:
        _check_port(bind)

    def missing(reason: str = "") -> str:
        reason = reason or f"refused, or not all within {CONNECT_SECONDS} seconds, see the error above"
        return (
            f"process {config.index} of {config.count}: no connection with the others at {config.coordinator} "
            f"({reason}); see whether all processes were started with one address and count, and whether it can be "
            "reached"
        )

    jax.config.update("jax_enable_preemption_service", False)  # it would catch SIGTERM, see `stopping`
    waiting = f"agentrl: process {config.index} of {config.count} waits for the others at {config.coordinator}"
    note = threading.Timer(NOTE_SECONDS, lambda: print(waiting, file=sys.stderr))
    note.daemon = True
    note.start()
    try:
        with stopping.aborts_end_with(missing):
            jax.distributed.initialize(
                *(config.coordinator, config.count, config.index, devices),
                cluster_detection_method="deactivate",
                initialization_timeout=CONNECT_SECONDS,
                coordinator_bind_address=bind,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
                shutdown_timeout_seconds=SHUTDOWN_SECONDS,
            )
    except (RuntimeError, ValueError) as error:
        raise UserError(missing(shortened(error, MAX_FOREIGN)), key=config.coordinator) from error
    finally:
        note.cancel()
    return config


def _check_port(address: str) -> None:
    """Raises a `UserError` if process 0 cannot listen at an address, where JAX would end with a segmentation fault."""
    host, _, port = address.rpartition(":")
    family = socket.AF_INET6 if host.startswith("[") else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier run's port may be closing
            probe.bind((host.strip("[]"), int(port)))
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise UserError(
                f"hosts.coordinator: process 0 cannot listen on port {port} ({error.strerror}); another run may use "
                "it: give another port, with hosts.coordinator auto by the variable JAX_COORDINATOR_PORT on all hosts",
                key="hosts.coordinator",
                value=port,
            ) from error


def stop() -> None:
    """Waits until all processes call this, and closes the connection; call it before a process ends on its own."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()


def is_writer() -> bool:
    """Whether this process is process 0, which writes the files of a run."""
    return jax.process_index() == 0


def fetch(tree: Any) -> Any:
    """Copies arrays to this host as NumPy arrays, the shards of other hosts included; call it on all processes."""

    def copy(x):
        if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
            return multihost_utils.process_allgather(x, tiled=True)
        return np.asarray(x)

    return jax.tree.map(copy, tree)


def gather(value: Any) -> list[Any]:
    """The values of all processes, in their order; `value` is JSON data. Call it on all processes."""
    if jax.process_count() == 1:
        return [value]
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(data.size))
    rows = multihost_utils.process_allgather(_padded(data, int(sizes.max())))
    return [json.loads(row[:size].tobytes()) for row, size in zip(rows, sizes.tolist())]


def same(tree: Any) -> bool:
    """Whether arrays have the same bytes on all processes; call it on all processes."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        digest.update(np.asarray(leaf).tobytes())
    return len(set(gather(digest.hexdigest()))) == 1


def agree(flag: bool) -> bool:
    """Whether the flag is set on any process; call it on all processes."""
    return any(gather(flag))


def from_writer(function: Callable[[], Any]) -> Any:
    """Calls a function on the writer only, and returns its result, JSON data, on all processes.

    Raises:
        UserError: the function raised one, on all processes.
    """
    if jax.process_count() == 1:
        return function()
    answer: dict[str, Any] = {}
    refusal = None
    if is_writer():
        try:
            answer["result"] = function()
        except UserError as error:
            refusal, answer["error"] = error, {"message": str(error), "key": error.key}
    data = np.frombuffer(json.dumps(answer).encode(), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.int32(data.size)))
    received = multihost_utils.broadcast_one_to_all(_padded(data if is_writer() else data[:0], size))
    answer = json.loads(received[:size].tobytes())
    if "error" in answer:
        raise refusal or UserError(**answer["error"])
    return answer["result"]


def _padded(data: np.ndarray, size: int) -> np.ndarray:
    """Bytes padded to a power of two, so that few sizes are compiled."""
    return np.pad(data, (0, max(64, 1 << (size - 1).bit_length()) - data.size))


@contextlib.contextmanager
def ending_together(config: HostsConfig, kept: Callable[[], str]) -> Iterator[None]:
    """After `start` has returned `config`: ends this process with a sentence if the block fails or another one is lost.

    A process cannot go on without the others, nor end as usual: Python's exit would wait for the others, which wait in
    a collective. They end as soon as the connection to this process is closed: by an error of the collective, or by
    JAX, which aborts a process in which it can no longer reach process 0, or learns there that another is lost. JAX
    offers no way to be asked first: calling the `missed_heartbeat_callback` of its client fails in JAX 0.10 to 0.12.
    `kept` says what is left of the run. A block that ends well, or with `stopping.Stopped`, waits for the others.
    """
    if not config.coordinator or config.count == 1:
        yield
        return

    who = f"process {config.index} of {config.count}"

    def lost(reason: str = "if not, see the error above") -> str:  # an abort may have any cause
        time.sleep(SETTLE_SECONDS)
        what = f"{_lost_process(config)} has ended, or cannot be reached ({reason})"
        return f"{who}: {what}; {kept()}; give it on all hosts"

    with stopping.aborts_end_with(lost) as install_again:
        try:
            jax.process_count()  # starts the devices, whose libraries may install handlers of signals
            install_again()
            # Gloo connects processes in their first collective and waits 30 seconds for the slowest. Here, right after
            # `start`, they are close together; later, after imports and reading of models, they need not be.
            agree(False)
            try:
                yield
            except stopping.Stopped:
                stop()
                raise
            stop()
        except stopping.Stopped:
            raise
        except Exception as error:
            if _is_loss(error):
                stopping.end(lost(shortened(error.__cause__ or error, MAX_FOREIGN)), 1)
            if shown := sentence(error, f"; {kept()}; give it on all hosts"):
                stopping.end(f"{who}: {shown}", 2)
            stopping.end(f"{who}: {''.join(traceback.format_exception(error))}", 1)


def _is_loss(error: Exception) -> bool:
    """Whether a collective has noticed that a process is lost, perhaps while a checkpoint was read or written."""
    if isinstance(error, UserError):  # one about an unreachable service may have the other signs
        return any(sign in str(error.__cause__) for sign in _COLLECTIVES)
    return any(sign in str(error) for sign in _SIGNS_OF_LOSS)


def _lost_process(config: HostsConfig) -> str:
    """Names the process that is lost: process 0 if nothing answers at its address."""
    host, _, port = config.coordinator.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_SECONDS).close()
    except OSError:
        return "process 0"
    return "another process"
