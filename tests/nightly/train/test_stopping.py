"""Processes that are stopped by a signal, or have no standard input."""

import os
import signal
import subprocess
import sys
import time

import pytest
import tiny_run
from aborting import aborted

COMMAND = [sys.executable, "-m", "agentrl_jax"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_stopped_says_what_is_kept(tmp_path, number):
    file = tiny_run.write_config(tmp_path)
    words = [*COMMAND, "train", file, "--run_dir", str(tmp_path / "run"), "--train.iterations", "100000"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 300
        while not (tmp_path / "run" / "checkpoints" / "5" / "digests.json").exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert err.count("\n") == 1
    assert err.startswith(f"agentrl: stopped by {number.name}; the checkpoint of step ")
    assert err.endswith(" is kept; the same command goes on from it\n")


@pytest.mark.parametrize("words", [("presets",), ("train", "absent.yaml"), ("play", "Bandit"), ("--help",)])
def test_no_command_needs_standard_input(words):
    done = subprocess.run(
        [*COMMAND, *words], preexec_fn=lambda: os.close(0), capture_output=True, text=True, timeout=300, check=False
    )
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 2)


def test_a_thread_that_aborts_while_the_interpreter_is_locked_ends_the_process():
    done = aborted("stuck")
    assert done.returncode == -signal.SIGABRT
    assert "sentence" not in done.stderr
