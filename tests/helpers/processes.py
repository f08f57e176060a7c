"""Processes that are connected as those of several hosts are, on this machine; and one that aborts."""

import os
import re
import socket
import subprocess
import sys
import time

DEVICES = ("--devices", "0")
GLOO = re.compile(r"^\[Gloo\].*\n", re.MULTILINE)
"""What the library of the collectives prints when processes are connected."""
LOST = ("process 0 has ended, or cannot be reached", "another process has ended, or cannot be reached")
"""What is said when process 0, or another one, is lost."""


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def started(command, environment):
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Hosts:
    def __init__(self, count, file, run, *words, devices=1):
        address = free_address()
        environment = {**os.environ, "JAX_NUM_CPU_DEVICES": str(devices)}
        runs = run if isinstance(run, list) else [run] * count
        self.processes = []
        for index in range(count):
            command = [sys.executable, "-m", "agentrl_jax", "train", file, "--run_dir", str(runs[index]), *DEVICES]
            if count > 1:
                command += ["--hosts.coordinator", address, "--hosts.count", str(count), "--hosts.index", str(index)]
            self.processes.append(started([*command, *words], environment))

    def end(self, seconds=300):
        deadline = time.monotonic() + seconds
        texts = []
        for process in self.processes:
            try:
                texts.append(process.communicate(timeout=max(deadline - time.monotonic(), 1)))
            except subprocess.TimeoutExpired:
                for each in self.processes:
                    each.kill()
                raise
        texts = [tuple(GLOO.sub("", text) for text in of_process) for of_process in texts]
        return [process.returncode for process in self.processes], texts


def until(condition, hosts, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert all(process.poll() is None for process in hosts.processes), hosts.end(1)
        assert time.monotonic() < deadline
        time.sleep(0.05)


def two_processes(script, *words, variables=lambda index: {}):
    """Runs a script with the address, the process's number and the words; returns exit codes and texts."""
    command = [sys.executable, "-c", script, free_address()]
    environment = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
    processes = [started([*command, str(index), *words], environment | variables(index)) for index in range(2)]
    texts = [process.communicate(timeout=200) for process in processes]
    return [process.returncode for process in processes], texts


SLURM = {
    "SLURM_JOB_ID": "4099",
    "SLURM_STEP_NODELIST": "n[1-2],m3",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
"""Variables of the second task of a job of SLURM."""

ABORTING = """
import ctypes, faulthandler, sys, threading, time
from agentrl_jax import stopping
how = sys.argv[1]
if how == "dumped":
    faulthandler.enable()
library = ctypes.PyDLL(None) if how == "stuck" else ctypes.CDLL(None)  # a PyDLL keeps the interpreter's lock
with stopping.aborts_end_with(lambda: "the sentence"):
    if how == "left":
        pass
    elif how == "segmentation fault":
        ctypes.string_at(0)
    else:
        threading.Thread(target=library.abort).start()
        while True:
            pass
library.abort()
"""
"""Aborts in one of several ways, inside or after `stopping.aborts_end_with`."""


def aborted(how):
    """Runs such a process to its end; `how` is aborted, left, dumped, segmentation fault or stuck (six seconds)."""
    words = [sys.executable, "-c", ABORTING, how]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
