"""Settings of JAX and Hypothesis for the whole suite; they must be set before the first array is made."""

import gc
import os
import time
from pathlib import Path

import xla_settings  # noqa: F401  # isort: skip

import costs
import filelock
import hypothesis
import jax
import pytest
import shape_checks
import skips

# They take a sixth of the time of tests that compile little.
if os.environ.get("TEST_SHAPES") == "1":
    shape_checks.install()

# Tracing makes many objects and few cycles: with Python's own thresholds a seventh of the suite's time is collection.
gc.set_threshold(100_000, 50, 100)

jax.config.update("jax_num_cpu_devices", 8)
# The same examples each time; nightly runs draw others, from a seed that pytest prints (--hypothesis-seed).
hypothesis.settings.register_profile("quick", deadline=None, derandomize=True)
hypothesis.settings.register_profile("nightly", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("TEST_HYPOTHESIS", "quick"))


TESTS = Path(__file__).parent


def pytest_configure(config):
    costs.install(config)


def shelf(item):
    return item.path.relative_to(TESTS).parts[0]


@pytest.hookimpl(tryfirst=True)  # before pytest selects by marks
def pytest_collection_modifyitems(items):
    """Marks whole shelves, and runs whole runs first, which take longest, so that no process is idle at the end."""
    for item in items:
        if shelf(item) in ("nightly", "property"):
            item.add_marker(shelf(item))
    items.sort(key=lambda item: shelf(item) != "integration")


if skips.REQUIRED:

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        return skips.as_failure((yield))

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(collector):
        return skips.as_failure((yield))


@pytest.fixture(scope="session")
def finished(tmp_path_factory, worker_id):
    """A finished run of `tiny_run.CONFIG`, one for all processes; a test that changes the folder copies it first."""
    import tiny_run

    # The processes of pytest-xdist have a folder each, in one that they share.
    shared = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent
    home = shared / "finished"
    with filelock.FileLock(shared / "finished.lock"):
        if not (home / "output").exists():
            home.mkdir()
            file = tiny_run.write_config(home)
            code, out, err = tiny_run.command("train", file, "--run_dir", str(home / "run"))
            assert (code, err) == (0, "")
            (home / "output").write_text(out)
    return tiny_run.Finished(str(home / "tiny.yaml"), home / "run", (home / "output").read_text())


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    import tiny_run

    home = tmp_path_factory.mktemp("served")
    (home / "served.yaml").write_text(tiny_run.SERVED)
    tiny_run.trained(home / "run", str(home / "served.yaml"))
    return home / "run"


@pytest.fixture
def bounded_memory():
    """Fails the test if the memory of this process grows a lot while it runs."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # KiB


MOST_MAPPINGS = 40_000
"""Mappings of memory from which on compiled programs are given back; Linux gives a process 65,530."""
_COUNTED = [0.0]
"""When they were counted last, by `time.monotonic`."""


@pytest.fixture
def object_store(monkeypatch):
    """A store in memory takes the place of those for gs:// and s3://; what is stored is dropped afterwards."""
    import fsspec
    from etils.epath import backend

    store = fsspec.filesystem("memory")
    info = store.info
    # Real stores give times of changes by this name.
    monkeypatch.setattr(store, "info", lambda path: (found := info(path)) | {"mtime": found.get("created")})
    in_memory = backend._FileSystemSpecBackend()
    monkeypatch.setattr(in_memory, "_get_filesystem", lambda name: store)
    monkeypatch.setattr(in_memory, "fs", lambda path: store)
    monkeypatch.setattr(
        "etils.epath.gpath._PREFIX_TO_BACKEND", {"gs": in_memory, "s3": in_memory, None: backend._OsPathBackend()}
    )
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


@pytest.fixture(autouse=True)
def programs_given_back():
    """Each compiled program takes many mappings, and XLA ends the process by a fault where there are none left.

    To count them takes some milliseconds, so it is done every two seconds.
    """
    yield
    maps = Path("/proc/self/maps")
    if time.monotonic() > _COUNTED[0] + 2 and maps.exists():
        _COUNTED[0] = time.monotonic()
        if maps.read_bytes().count(b"\n") > MOST_MAPPINGS:
            jax.clear_caches()
            gc.collect()
