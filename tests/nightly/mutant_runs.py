"""Runs the quick tests of a folder in copies of the checkout, with or without a fault."""

import json
import multiprocessing
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from mutant_plugin import MOST_RAISED, RESULT
from mutant_sources import ROOT, Mutant, folder_of

NEAREST = 2
OWN = ("paths", "xla_settings", "mutant_plugin", "mutant_runs", "mutant_sources", "mutants")
"""Modules of the checkout that a process may have imported, and takes from its copy instead."""

# Processes begin with the libraries, but without any that starts JAX's devices: they do not outlive a fork.
PROCESSES = multiprocessing.get_context("forkserver")
LIBRARIES = ["jax.numpy", "scipy.stats", "flax.struct", "optax", "orbax.checkpoint", "hypothesis.strategies", "chex"]
LIBRARIES += ["jaxtyping", "pydantic", "yaml", "rich.console", "httpx", "tensorboardX", "etils.epath", "numpy.testing"]
PROCESSES.set_forkserver_preload(LIBRARIES)


def nearest_tests(file: str, root: Path = ROOT) -> list[str]:
    """The test files of a file's folder, the nearest first: by name, then those that import it, then by alphabet.

    Of a file in a part of its folder, such as one game of several, only those that name the part or the file.
    """
    folder = folder_of(file)
    home = root / "tests" / "unit" / folder.removeprefix("agentrl_jax/")
    package = folder.replace("/", ".")
    found = sorted(home.rglob("test_*.py"))
    for shelf in ("property", "golden"):
        others = sorted((root / "tests" / shelf).rglob("test_*.py"))
        found += [path for path in others if package in path.read_text()]
    part = "" if Path(file).parent == Path(folder) else Path(file).parent.name.replace("_", "")
    stem = Path(file).stem
    found = [path for path in found if stem in path.stem or part in path.read_text().lower().replace("_", "")]
    module = file.removesuffix(".py").replace("/", ".")
    parent = module.rpartition(".")[0]
    imports = re.compile(rf"{re.escape(module)}\b|from {re.escape(parent)} import [^\n]*\b{stem}\b")
    wanted = set(re.findall(r"[a-z]+", module.removeprefix(package)))

    def rank(path: Path) -> tuple[bool, float, bool]:
        words = set(re.findall(r"[a-z]+", path.stem.removeprefix("test_")))
        near = len(words & wanted) / len(words | wanted)
        return path.stem != f"test_{stem}", -near, not imports.search(path.read_text())

    return [str(path.relative_to(root)) for path in sorted(found, key=rank)]


def copied(root: Path, target: Path) -> Path:
    """Copies the files of a checkout that git knows or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=root, check=True, capture_output=True).stdout.decode().split("\0")
    for name in filter(None, names):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)
    return target


def _session(root: str, tests: Sequence[str], result: str, output: str, most_raised: int) -> None:
    """Runs pytest in a copy, in a process that has imported the libraries and nothing of the checkout."""
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    os.chdir(root)
    nightly = os.path.join(root, "tests", "nightly")
    os.environ |= {RESULT: result, MOST_RAISED: str(most_raised), "PYTHONPATH": os.pathsep.join([root, nightly])}
    for name in OWN:
        sys.modules.pop(name, None)
    sys.path[:] = [root, nightly, *(path for path in sys.path if not path.startswith(str(ROOT / "tests")))]
    os._exit(pytest.main(["-p", "mutant_plugin", "-p", "no:cacheprovider", "-m", "not nightly", "-n", "0", *tests]))


def run_tests(root: Path, tests: Sequence[str], timeout: float, most_raised: int) -> tuple[str, str]:
    """Runs test files of a copy; returns the outcome, and which test or error decided it."""
    result, output = root / "result.json", root / "output.txt"
    for file in (result, output):
        file.unlink(missing_ok=True)
    process = PROCESSES.Process(target=_session, args=(str(root), tests, str(result), str(output), most_raised))
    process.start()
    process.join(timeout)
    if process.is_alive():
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        return "timeout", f"{timeout:g} s"
    found = json.loads(result.read_text()) if result.exists() else {}
    for name, outcome in (("killed", "killed"), ("collection", "error"), ("raised", "raised")):
        if found.get(name):
            return outcome, found[name]
    passed = found and process.exitcode == 0
    return ("survived", "") if passed else ("error", output.read_text(errors="replace").strip()[-300:])


class Copies:
    """Copies of the checkout, one for each worker, in which one fault at a time is planted."""

    def __init__(self, home: Path, workers: int, timeout: float, nearest: int | None, most_raised: int):
        self.timeout, self.nearest, self.most_raised = timeout, nearest, most_raised
        self.free: queue.Queue[Path] = queue.Queue()
        for number in range(workers):
            self.free.put(copied(ROOT, home / str(number)))

    def check(self, folder: str) -> tuple[str, str, float]:
        """Runs all tests of a folder without a fault."""
        return self._run(nearest_tests(f"{folder}/__init__.py"), None)

    def outcome(self, mutant: Mutant) -> tuple[str, str, float]:
        """Runs the tests of a fault's folder; returns the outcome, what decided it, and the seconds."""
        tests, raised, seconds = nearest_tests(mutant.file)[: self.nearest], "", 0.0
        # The nearest run first, alone: most faults are noticed there, and importing the others takes seconds.
        for some in filter(None, (tests[:NEAREST], tests[NEAREST:])):
            outcome, decided_by, more = self._run(some, mutant)
            seconds += more
            if outcome not in ("survived", "raised") or (outcome == "raised" and self.most_raised == 1):
                return outcome, decided_by, seconds
            raised = raised or decided_by
        return ("raised" if raised else "survived"), raised, seconds

    def _run(self, tests: Sequence[str], mutant: Mutant | None) -> tuple[str, str, float]:
        root, start = self.free.get(), time.monotonic()
        try:
            if mutant:
                _write(root / mutant.file, mutant.code)
            return *run_tests(root, tests, self.timeout, self.most_raised), time.monotonic() - start
        finally:
            if mutant:
                _write(root / mutant.file, (ROOT / mutant.file).read_text())
            self.free.put(root)


def _write(path: Path, code: str) -> None:
    """Replaces a file; Python must not take its old bytecode, which it knows by size and second."""
    path.write_text(code)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()
