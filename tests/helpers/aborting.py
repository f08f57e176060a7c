"""A process that aborts, in one of several ways, inside or after `stopping.aborts_end_with`."""

import subprocess
import sys

SCRIPT = """
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


def aborted(how):
    """Runs the process to its end; `how` is aborted, left, dumped, segmentation fault or stuck (six seconds)."""
    words = [sys.executable, "-c", SCRIPT, how]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
