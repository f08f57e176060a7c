"""Sets the environment variables of Python, JAX and XLA for the whole suite; import it before JAX.

They are environment variables, because processes started by tests must produce the same machine code: their results are
compared bit for bit with results of the process of the tests.
"""

import contextlib
import os
import sys
from importlib.metadata import version

from paths import ROOT

_HAS_FUSION_EMITTERS_FLAG = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
"""Later versions always use the emitters and refuse the flag."""

SAME_BITS = {"xla_cpu_use_fusion_emitters": True} if _HAS_FUSION_EMITTERS_FLAG else {}
"""Compiler options with which, on a CPU, a replay equals its rollout bit for bit; XLA's default, turned off below."""

os.environ.setdefault("JAX_PLATFORMS", "cpu")

# As in the Makefile, for a plain `pytest`.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Compiled programs are kept between runs of tests.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "jax"))
# Thousands of programs are single operations; with JAX's limit, each of the two processes would compile them.
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_COMPILATION_CACHE_MAX_SIZE", "-1")  # one for all processes; with a limit they lock it
# A process that reads what another one is still writing compiles the program itself, and need not say so.
os.environ.setdefault("PYTHONWARNINGS", "ignore:Error reading persistent compilation cache")

# Without the lines of Python that each operation comes from, which no test reads.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")

# XLA aborts the process if one of the eight devices is 40 seconds late for a collective, which can happen on a busy
# machine with two cores.
_flags = [
    "--xla_cpu_collective_call_warn_stuck_timeout_seconds=300",
    "--xla_cpu_collective_call_terminate_timeout_seconds=900",
]

# Compilation takes most of the suite's time, more than optimized machine code saves; the fusion emitters take most of
# that. `make test-optimized` compiles as users do.
if os.environ.get("TEST_OPTIMIZED") != "1":
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    # Programs are small: compiling them in parts costs a tenth more, and saves nothing where two processes test. Two
    # passes take a quarter of what is left, to make the loops of a rollout a little faster.
    _flags.append("--xla_cpu_parallel_codegen_split_count=1")
    _flags.append("--xla_disable_hlo_passes=while-loop-invariant-code-motion,simplify-while-loops")
    if _HAS_FUSION_EMITTERS_FLAG:
        _flags.append("--xla_cpu_use_fusion_emitters=false")

os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_flags])


@contextlib.contextmanager
def optimized():
    """Compiles with optimizations inside, for programs that run longer than they compile."""
    import jax

    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", before)
