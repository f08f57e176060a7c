"""Plants one-line faults in a copy of the product, and asks whether a quick test notices: `make test-mutants`.

    python tests/nightly/mutants.py                            # the faults of mutants.yaml: every one must be noticed
    python tests/nightly/mutants.py --generated 150 --seed 0   # faults that cosmic-ray makes: most must be noticed
    python tests/nightly/mutants.py --folder algos --only 3    # fault 3 of agentrl_jax/algos

Of each folder, first the unchanged copy has to pass. Then each fault is planted alone, and the unit, property and
golden tests of its folder run, those nearest to the file first, until one notices it. A fault is

    killed     an assertion of a test failed (`assert`, NumPy's and chex's, or `pytest.raises` without an exception),
    raised     tests failed, but with other exceptions only,
    error      the tests could not be collected, or their process died,
    timeout    they did not end in time,
    survived   all passed.

Ends with 1 if a written fault is not killed. Of the generated ones enough must be killed or raised: many only break
shapes or types, where no assertion is reached; those that cannot be collected are replaced by others.
"""

import argparse
import ast
import collections
import concurrent.futures
import dataclasses
import json
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.yaml")
FOLDERS = (
    "envs_jax",
    *(f"agentrl_jax/{name}" for name in ("algos", "learner", "rollout", "models", "text", "config")),
)
OUTCOMES = ("killed", "raised", "error", "timeout", "survived")
ENOUGH = 0.85
"""Share of the generated faults that must be noticed."""

MOST_RAISED = 10
"""Tests that may fail with other exceptions before the rest is not run."""

SWAPS = (
    *("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Mul_Add", "FloorDiv_Mul", "Mod_FloorDiv", "Pow_Mul"),
    *("BitAnd_BitOr", "BitOr_BitAnd", "LShift_RShift", "RShift_LShift"),
)
"""Replacements of binary operators that keep the type of the result; cosmic-ray has others, which only raise."""

_OPERATIONS = ("arith_expr", "term", "expr", "and_expr", "shift_expr", "power")
"""parso's names of binary operations."""

_RESULT = "MUTANTS_RESULT"


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A file of the product with one fault."""

    file: str
    line: int
    kind: str
    changed: str
    """The first line that differs, after the change."""
    code: str
    """The whole file with the fault."""

    @property
    def folder(self) -> str:
        """The folder whose tests should notice it."""
        return folder_of(self.file)


def folder_of(file: str) -> str:
    """The entry of `FOLDERS` that a file is in; ValueError if it is in none."""
    for folder in FOLDERS:
        if file.startswith(f"{folder}/"):
            return folder
    raise ValueError(f"the file is {file!r}; expected one in {', '.join(FOLDERS)}")


def planted(file: str, before: str, after: str, kind: str) -> Mutant:
    """The fault between two texts of a file."""
    pairs = enumerate(zip(before.splitlines(), after.splitlines()), 1)
    line, changed = next((number, new) for number, (old, new) in pairs if old != new)
    return Mutant(file, line, kind, changed.strip(), after)


def written(entries: Iterable[Mapping[str, str]], root: Path = ROOT) -> list[Mutant]:
    """The faults of a list; ValueError if a text does not occur exactly once in its file, or stays the same."""
    found = []
    for entry in entries:
        before = (root / entry["file"]).read_text()
        count = before.count(entry["text"])
        if count != 1:
            raise ValueError(
                f"{entry['file']}: {entry['text']!r} occurs {count} times; expected a text that occurs once"
            )
        if entry["replacement"] == entry["text"]:
            raise ValueError(f"{entry['file']}: {entry['text']!r} is replaced by itself; expected a fault")
        after = before.replace(entry["text"], entry["replacement"])
        found.append(planted(entry["file"], before, after, entry["kind"]))
    return found


def generated(folder: str, seed: int, root: Path = ROOT) -> Iterator[Mutant]:
    """Faults of a folder that cosmic-ray makes, in random order, at most one at each place."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.operators.provider import OperatorProvider

    provider = OperatorProvider()
    operators = {name: provider[name]() for name in provider if _is_used(name)}
    places = collections.defaultdict(list)
    for file in sorted(str(path.relative_to(root)) for path in (root / folder).rglob("*.py")):
        nodes = list(ast_nodes(get_ast((root / file).read_text())))
        for name, operator in operators.items():
            for number, node in enumerate(nodes):
                if not _is_arithmetic(node):
                    continue
                for index, (start, _) in enumerate(operator.mutation_positions(node)):
                    places[file, start].append((name, number, index))
    draw = random.Random(f"{seed} {folder}")
    order = sorted(places)
    draw.shuffle(order)
    for file, start in order:
        name, number, index = draw.choice(places[file, start])
        before = (root / file).read_text()
        tree = get_ast(before)
        # Operators change a node or return another one, which then takes its place.
        node = list(ast_nodes(tree))[number]
        siblings = node.parent.children
        siblings[siblings.index(node)] = operators[name].mutate(node, index)
        after = tree.get_code()
        if _runs(before) != _runs(after):
            yield planted(file, before, after, name)


def _is_arithmetic(node: Any) -> bool:
    """Whether a node computes: no message, no star of a signature or call, no sign or number of `-1`."""
    if node.type == "operator" and node.value in ("*", "**", "-", "+") and node.parent.type not in _OPERATIONS:
        return False
    while node is not None:
        if node.type == "fstring" or (node.type == "factor" and node.children[-1].type == "number"):
            return False
        node = node.parent
    return True


def _is_used(name: str) -> bool:
    if name.startswith("ReplaceBinaryOperator_"):
        return name.partition("_")[2] in SWAPS
    if name.startswith("ReplaceComparisonOperator_"):
        return ("Is" in name.partition("_")[2].partition("_")[0]) == ("_Is" in name)
    return name in (
        *("AddNot", "ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd"),
        *("NumberReplacer", "ReplaceUnaryOperator_Delete_Not", "ReplaceUnaryOperator_Delete_USub"),
        *("ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ReplaceUnaryOperator_Delete_Invert"),
    )


class _WithoutTypes(ast.NodeTransformer):
    def visit_arg(self, node):
        node.annotation = None
        return node

    def visit_AnnAssign(self, node):
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_FunctionDef(self, node):
        node.returns = None
        return self.generic_visit(node)


def _runs(code: str) -> str:
    """What a file says apart from layout and annotations; empty if it is no Python."""
    try:
        return ast.dump(_WithoutTypes().visit(ast.parse(code)))
    except SyntaxError:
        return ""


def nearest_tests(file: str, root: Path = ROOT) -> list[str]:
    """The test files of a file's folder, the nearest first: by name, then those that import it, then by alphabet."""
    folder = folder_of(file)
    home = root / "tests" / "unit" / folder.removeprefix("agentrl_jax/")
    package = folder.replace("/", ".")
    found = sorted(home.rglob("test_*.py"))
    for shelf in ("property", "golden"):
        others = sorted((root / "tests" / shelf).rglob("test_*.py"))
        found += [path for path in others if package in path.read_text()]
    module = file.removesuffix(".py").replace("/", ".")
    parent, _, stem = module.rpartition(".")
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


def run_tests(root: Path, tests: Sequence[str], timeout: float) -> tuple[str, str]:
    """Runs test files of a copy; returns the outcome, and which test or error decided it."""
    result = root / "result.json"
    result.unlink(missing_ok=True)
    environment = {
        "JAX_COMPILATION_CACHE_DIR": str(ROOT / ".cache" / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.2",
        "JAX_PLATFORMS": "cpu",
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), str(root / "tests" / "nightly")]),
        _RESULT: str(result),
    }
    command = [sys.executable, "-m", "pytest", "-p", "mutants", "-p", "no:cacheprovider", "-n", "0", *tests]
    try:
        done = subprocess.run(command, cwd=root, env=environment, timeout=timeout, capture_output=True, text=True)
    except subprocess.TimeoutExpired:
        return "timeout", f"{timeout:g} s"
    if not result.exists():
        return "error", (done.stderr or done.stdout).strip()[-300:]
    found = json.loads(result.read_text())
    if found["killed"]:
        return "killed", found["killed"]
    if found["collection"]:
        return "error", found["collection"]
    if found["raised"]:
        return "raised", found["raised"]
    return ("survived", "") if done.returncode == 0 else ("error", done.stdout.strip()[-300:])


@dataclasses.dataclass
class Session:
    """What one process of pytest, in which this module is a plugin, has found."""

    killed: str = ""
    raised: str = ""
    collection: str = ""
    failures: int = 0


_session = Session()


def is_assertion(error: BaseException) -> bool:
    """Whether an exception is a failed assertion of a test, and not a limit of time."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_assertion, error.exceptions))
    return isinstance(error, AssertionError) or (
        isinstance(error, pytest.fail.Exception) and not str(error).startswith("Timeout")
    )


def pytest_sessionstart(session):
    """Hypothesis need not look for the smallest input that fails."""
    import hypothesis

    if _RESULT in os.environ:
        usual = hypothesis.settings.get_profile(hypothesis.settings.get_current_profile_name())
        phases = [phase for phase in usual.phases if phase not in (hypothesis.Phase.shrink, hypothesis.Phase.explain)]
        hypothesis.settings.register_profile("mutants", usual, phases=phases, database=None)
        hypothesis.settings.load_profile("mutants")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Ends the session at the first failed assertion."""
    report = yield
    if report.failed and call.excinfo is not None:
        if is_assertion(call.excinfo.value):
            _session.killed = item.nodeid
            item.session.shouldstop = "noticed"
        else:
            _session.raised = _session.raised or f"{item.nodeid}: {call.excinfo.typename}"
            _session.failures += 1
            if _session.failures >= MOST_RAISED:
                item.session.shouldstop = "raises everywhere"
    return report


def pytest_collectreport(report):
    """Notes a file that cannot be imported."""
    if report.failed:
        _session.collection = report.nodeid


def pytest_sessionfinish(session):
    """Writes what was found."""
    if _RESULT in os.environ:
        Path(os.environ[_RESULT]).write_text(json.dumps(dataclasses.asdict(_session)))


class Copies:
    """Copies of the checkout, one for each worker, in which one fault at a time is planted."""

    def __init__(self, home: Path, workers: int, timeout: float, nearest: int | None):
        self.timeout, self.nearest = timeout, nearest
        self.free: queue.Queue[Path] = queue.Queue()
        for number in range(workers):
            self.free.put(copied(ROOT, home / str(number)))

    def check(self, folder: str) -> tuple[str, str, float]:
        """Runs all tests of a folder without a fault."""
        return self._run(nearest_tests(f"{folder}/__init__.py"), None)

    def outcome(self, mutant: Mutant) -> tuple[str, str, float]:
        """Runs the tests of a fault's folder; returns the outcome, what decided it, and the seconds."""
        return self._run(nearest_tests(mutant.file)[: self.nearest], mutant)

    def _run(self, tests: Sequence[str], mutant: Mutant | None) -> tuple[str, str, float]:
        root, start = self.free.get(), time.monotonic()
        path = root / mutant.file if mutant else None
        usual = path.read_text() if path else ""
        try:
            if path and mutant:
                _write(path, mutant.code)
            return *run_tests(root, tests, self.timeout), time.monotonic() - start
        finally:
            if path:
                _write(path, usual)
            self.free.put(root)


def _write(path: Path, code: str) -> None:
    """Replaces a file; Python must not take its old bytecode, which it knows by size and second."""
    path.write_text(code)
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def chosen(options: argparse.Namespace) -> dict[str, Iterator[Mutant]]:
    """By folder, the faults to plant."""
    folders = [folder for folder in FOLDERS if not options.folder or folder.split("/")[-1] == options.folder]
    if not folders:
        raise SystemExit(
            f"--folder is {options.folder}; expected one of {', '.join(x.split('/')[-1] for x in FOLDERS)}"
        )
    if options.generated:
        return {folder: generated(folder, options.seed) for folder in folders}
    every = written(yaml.safe_load(LIST.read_text()))
    return {folder: iter([mutant for mutant in every if mutant.folder == folder]) for folder in folders}


def play(
    copies: Copies, pool: concurrent.futures.Executor, mutants: Iterator[Mutant], number: int | None
) -> list[tuple[Mutant, tuple[str, str, float]]]:
    """The outcomes of `number` faults of a folder, None for all; of generated ones, errors make room for others."""
    found: list[tuple[Mutant, tuple[str, str, float]]] = []
    while number is None or number > 0:
        batch = list(mutants) if number is None else [mutant for mutant, _ in zip(mutants, range(number))]
        for mutant, result in zip(batch, pool.map(copies.outcome, batch)):
            found.append((mutant, result))
            outcome, decided_by, seconds = result
            print(
                f"{outcome:9} {seconds:4.0f} s  {mutant.file}:{mutant.line} {mutant.kind}: {mutant.changed}", flush=True
            )
            print(f"{'':18}{decided_by}", flush=True) if decided_by else None
        errors = sum(result[0] == "error" for _, result in found[-len(batch) :]) if batch else 0
        number = errors if number is not None and batch else 0
    return found


def table(rows: Mapping[str, Sequence[tuple[str, str, float]]]) -> str:
    """Counts of the outcomes by folder."""
    lines = [f"{'folder':22}" + "".join(f"{name:>10}" for name in (*OUTCOMES, "seconds"))]
    totals = {**rows, "all": [result for results in rows.values() for result in results]}
    for folder, results in totals.items():
        counts = collections.Counter(outcome for outcome, _, _ in results)
        seconds = sum(result[2] for result in results)
        lines.append(f"{folder:22}" + "".join(f"{counts[name]:10}" for name in OUTCOMES) + f"{seconds:10.0f}")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Plants the faults that the command line asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", help="name of one folder, e.g. algos; without it all")
    parser.add_argument("--only", type=int, help="number of one fault of the folder, from 0")
    parser.add_argument(
        "--generated", type=int, default=0, help="number of generated faults instead of the written ones"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the generated faults")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds of the tests of one fault")
    parser.add_argument("--nearest", type=int, help="run only so many test files, the nearest")
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without a fault first")
    options = parser.parse_args(words)
    folders = chosen(options)
    each = -(-options.generated // len(folders)) if options.generated else None
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home, concurrent.futures.ThreadPoolExecutor(options.workers) as pool:
        copies = Copies(Path(home), options.workers, options.timeout, options.nearest)
        for folder, (outcome, decided_by, seconds) in (
            zip(folders, pool.map(copies.check, folders)) if not options.unchecked else ()
        ):
            print(
                f"{'passes' if outcome == 'survived' else 'FAILS':9} {seconds:4.0f} s  {folder} without a fault",
                flush=True,
            )
            if outcome != "survived":
                raise SystemExit(f"{folder}: the tests fail without a fault: {outcome} {decided_by}")
        for folder, mutants in folders.items():
            some = mutants if options.only is None else iter(list(mutants)[options.only : options.only + 1])
            results[folder] = [result for _, result in play(copies, pool, some, each)]
    print(table(results))
    every = [outcome for found in results.values() for outcome, _, _ in found]
    if not options.generated:
        return int(any(outcome != "killed" for outcome in every))
    counted = [outcome for outcome in every if outcome != "error"]
    killed, raised = counted.count("killed"), counted.count("raised")
    share = (killed + raised) / max(len(counted), 1)
    print(f"of {len(counted)}, {killed} killed and {raised} raised: {share:.0%}; needed: {ENOUGH:.0%}")
    return int(share < ENOUGH)


if __name__ == "__main__":
    sys.exit(main())
