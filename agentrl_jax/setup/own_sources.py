"""The code of the user's rules: what is imported, its digest, and the copy that a run keeps."""

import ast
import contextlib
import hashlib
import importlib.metadata
import sys
import sysconfig
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from types import ModuleType

from agentrl_jax.environments.loading import imported
from agentrl_jax.errors import BadValue
from agentrl_jax.io import atomic_write
from agentrl_jax.terminal import to_stderr

COPIES = "rules"
"""Folder of a run with copies of the files, as text."""
MAX_BYTES = 1 << 20
PATIENCE = 5.0
"""Seconds of an import after which it is said."""
_named: set[str] = set()


def name_module(module: str) -> None:
    """Lets a module be imported for rules that a run has stored: `--rules MODULE`.

    Raises:
        ValueError: it is no name of a module.
    """
    if not all(part.isidentifier() for part in module.split(".")):
        raise BadValue.of("--rules", module, "expected the name of a module, such as my_rules")
    _named.add(module)


def import_rules(key: str, path: str, *, stored: bool) -> ModuleType:
    """Imports the module of an import path; `stored` says that only the folder of a run names it.

    What it prints goes to standard error.

    Raises:
        ValueError: nobody has named the module, or it cannot be imported.
    """
    module = path.partition(":")[0]
    if stored and module not in _named and module not in sys.modules:
        why = f"which only the folder of a run names; add --rules {module} to import it"
        raise BadValue.of(key, path, why)
    said = threading.Timer(PATIENCE, to_stderr, [f"importing {module}, which takes a while"])
    said.start()
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return imported(path, module, key)
    finally:
        said.cancel()


def source_of(module: ModuleType) -> str:
    """Name and version of an installed package, or a digest of the module and what it imports from its folder.

    Raises:
        ValueError: the module has no file that can be read.
    """
    file, top = _file(module), module.__name__.partition(".")[0]
    installed = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")]
    if any(folder in file.parents for folder in installed):
        names = importlib.metadata.packages_distributions().get(top, [top])
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{names[0]} {importlib.metadata.version(names[0])}"
    digest = hashlib.sha256()
    for name, content in sorted(_files(module).items()):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return f"sha256:{digest.hexdigest()[:32]}"


def copy_sources(folder: Path, modules: Collection[ModuleType]) -> None:
    """Writes the files of modules into the folder of a run, as text that nothing imports; older copies stay."""
    for module in modules:
        for name, content in _files(module).items():
            digest = hashlib.sha256(content).hexdigest()[:8]
            copy = folder / COPIES / f"{name.replace('/', '.')}.{digest}.txt"
            if not copy.exists():
                copy.parent.mkdir(exist_ok=True)
                with atomic_write(copy) as stream:
                    stream.write(content.decode(errors="replace"))


def _file(module: ModuleType) -> Path:
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py"):
        raise BadValue.of("module", module.__name__, "which has no .py file, so that nobody can tell what a run used")
    return Path(file).resolve()


def _files(module: ModuleType) -> dict[str, bytes]:
    """The file of a module and those that it imports from its folder, by their paths below it."""
    file, depth = _file(module), module.__name__.count(".") + (Path(module.__file__ or "").name == "__init__.py")
    root, found, left = file.parents[depth], {}, [file]
    while left:
        file = left.pop()
        name = file.relative_to(root).as_posix()
        if name in found:
            continue
        with file.open("rb") as stream:
            found[name] = stream.read(MAX_BYTES + 1)
        if len(found[name]) > MAX_BYTES:
            raise BadValue.of("module", name, f"which has more than {MAX_BYTES} bytes; keep rules in small files")
        left += _imported_files(root, file, found[name])
    return found


def _imported_files(root: Path, file: Path, content: bytes) -> Iterator[Path]:
    """Files below a folder that a file of it imports, the packages of these included."""
    for node in ast.walk(ast.parse(content)):
        names: list[tuple[Path, str]] = []
        if isinstance(node, ast.Import):
            names = [(root, each.name) for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = file.parents[node.level - 1] if node.level else root
            above = node.module or ""
            names = [(base, f"{above}.{each.name}".strip(".")) for each in node.names]
        for base, name in names:
            place = base
            for part in name.split("."):
                place = place / part
                for candidate in (place.with_suffix(".py"), place / "__init__.py"):
                    if candidate.is_file() and root in candidate.resolve().parents:
                        yield candidate.resolve()
