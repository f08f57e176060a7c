"""Processes that are stopped by a signal, or have no standard input."""

import os
import signal
import subprocess
import sys
import time

import pytest
import tiny_run

COMMAND = [sys.executable, "-m", "agentrl_jax"]


@pytest.mark.slow
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
        [*COMMAND, *words],
        preexec_fn=lambda: os.close(0),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 2)


TERMINATED = """
import os, signal, sys, time
from agentrl_jax import stopping
with stopping.ends_with(lambda: "the sentence"), stopping.deferring() as asked:
    with stopping.ending_at_once():
        if sys.argv[1] == "inside":
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
    os.kill(os.getpid(), signal.SIGTERM)
    end = time.monotonic() + 60
    while not asked() and time.monotonic() < end:
        time.sleep(0.01)
    print(asked())
"""


@pytest.mark.parametrize(
    ("where", "code", "output", "error"),
    [("inside", 143, "", "agentrl: stopped by SIGTERM; the sentence\n"), ("after", 0, "True\n", "")],
)
def test_where_nothing_is_saved_the_first_signal_ends_the_process(where, code, output, error):
    words = [sys.executable, "-c", TERMINATED, where]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (code, output, error)


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


@pytest.mark.parametrize(
    ("how", "code"),
    [
        ("aborted", 1),
        ("left", -signal.SIGABRT),
        ("dumped", -signal.SIGABRT),
        ("segmentation fault", -signal.SIGSEGV),
        pytest.param("stuck", -signal.SIGABRT, marks=pytest.mark.slow),  # after six seconds
    ],
)
def test_an_abort_ends_with_the_sentence(how, code):
    done = subprocess.run(
        [sys.executable, "-c", ABORTING, how], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code
    assert done.stderr == "agentrl: the sentence\n" if how == "aborted" else "sentence" not in done.stderr
    assert ("Fatal Python error: Aborted" in done.stderr) == (how == "dumped")
