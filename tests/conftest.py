"""Settings of JAX and Hypothesis for the whole suite; they must be set before the first array is made."""

import gc
import os
from pathlib import Path

import xla_settings  # noqa: F401  # isort: skip

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
# Has an effect only if JAX_COMPILATION_CACHE_DIR is set.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
hypothesis.settings.register_profile("no_deadline", deadline=None)
hypothesis.settings.load_profile("no_deadline")


WITH_FINISHED_RUN = (
    *(
        "test_api_circle.py",
        "test_diagnose.py",
        "test_eval_set.py",
        "test_finished_run.py",
        "test_panels.py",
        "test_recorded_evaluation.py",
        "test_recorded_retries.py",
        "test_recorder.py",
        "test_records.py",
        "test_scaling.py",
        "test_screenshots.py",
        "test_seen.py",
        "test_selectors.py",
        "test_loop.py",
        "test_resume.py",
        "test_retry.py",
        "test_unwritable.py",
    ),
)
"""Files whose tests use the fixture `finished`, which costs a process the time of a whole run."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Assigns whole files to processes, because tests of a file share programs; `finished` is made in one process."""
    from xdist.scheduler import LoadFileScheduling

    class FinishedRunOnce(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "finished" if file.endswith(WITH_FINISHED_RUN) else file

    return FinishedRunOnce(config, log)


def pytest_collection_modifyitems(items):
    """Runs the longest tests first (`finished` and other whole runs), so that no process is idle at the end."""

    def rank(item):
        return item.path.name not in WITH_FINISHED_RUN, not {"train", "evaluate"} & set(item.path.parts)

    items.sort(key=rank)


if skips.REQUIRED:

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(item, call):
        return skips.as_failure((yield))

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(collector):
        return skips.as_failure((yield))


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished run of `tiny_run.CONFIG`; a test that changes the folder copies it first."""
    import tiny_run

    home = tmp_path_factory.mktemp("finished")
    file = tiny_run.write_config(home)
    code, out, err = tiny_run.command("train", file, "--run_dir", str(home / "run"))
    assert (code, err) == (0, "")
    return tiny_run.Finished(file, home / "run", out)


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """The folder of an untrained run on a maze, `tiny_run.SERVED`."""
    import tiny_run

    home = tmp_path_factory.mktemp("served")
    (home / "served.yaml").write_text(tiny_run.SERVED)
    code, _, err = tiny_run.command("train", str(home / "served.yaml"), "--run_dir", str(home / "run"))
    assert code == 0, err
    return home / "run"


MOST_MAPPINGS = 40_000
"""Mappings of memory from which on compiled programs are given back; Linux gives a process 65,530."""


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


@pytest.fixture(autouse=True, scope="module")
def programs_given_back():
    """Each compiled program takes many mappings, and XLA ends the process by a fault where there are none left."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPPINGS:
        jax.clear_caches()
        gc.collect()
