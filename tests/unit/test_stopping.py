import signal
import subprocess
import sys

import pytest
from processes import aborted

from agentrl_jax import stopping

SIGNALED = """
import os, signal, sys, time
from agentrl_jax import stopping
where, number = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
def wait():
    end = time.monotonic() + 60
    while not asked() and time.monotonic() < end:
        time.sleep(0.01)
with stopping.ends_with(lambda: "the sentence"), stopping.deferring() as asked:
    with stopping.ending_at_once():
        if where == "inside":
            os.kill(os.getpid(), number)
            wait()
    os.kill(os.getpid(), number)
    wait()
    print(asked(), flush=True)
    if where == "twice":
        os.kill(os.getpid(), number)
        time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("where", ["inside", "after", "twice"])
def test_a_first_signal_asks_and_a_second_one_ends_the_process(where, number):
    """Where nothing can be saved, the first one ends it."""
    words = [sys.executable, "-c", SIGNALED, where, str(int(number))]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    ended = f"agentrl: stopped by {number.name}; the sentence\n"
    told = f"\nthe run {stopping._SOON}\n" if number == signal.SIGINT and where != "inside" else ""
    assert done.stdout == ("" if where == "inside" else f"{int(number)}\n")
    assert done.stderr == told + (ended if where != "after" else "")
    assert done.returncode == (0 if where == "after" else 128 + number)


def test_a_run_under_nohup_outlives_its_terminal():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping.ends_with(lambda: ""):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_in_a_notebook_the_first_interrupt_asks_and_the_second_one_interrupts():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with stopping.deferring() as asked:
            signal.raise_signal(signal.SIGINT)
            assert asked() == signal.SIGINT
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    ("how", "code"),
    [("aborted", 1), ("left", -signal.SIGABRT), ("dumped", -signal.SIGABRT), ("segmentation fault", -signal.SIGSEGV)],
)
def test_an_abort_ends_with_the_sentence(how, code):
    done = aborted(how)
    assert done.returncode == code
    assert done.stderr == "agentrl: the sentence\n" if how == "aborted" else "sentence" not in done.stderr
    assert ("Fatal Python error: Aborted" in done.stderr) == (how == "dumped")
