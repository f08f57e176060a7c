"""How a process ends at a signal or an abort: with one sentence."""

import signal
import subprocess
import sys

import pytest
from aborting import aborted

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


@pytest.mark.parametrize(
    ("how", "code"),
    [("aborted", 1), ("left", -signal.SIGABRT), ("dumped", -signal.SIGABRT), ("segmentation fault", -signal.SIGSEGV)],
)
def test_an_abort_ends_with_the_sentence(how, code):
    done = aborted(how)
    assert done.returncode == code
    assert done.stderr == "agentrl: the sentence\n" if how == "aborted" else "sentence" not in done.stderr
    assert ("Fatal Python error: Aborted" in done.stderr) == (how == "dumped")
