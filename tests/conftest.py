"""Settings of JAX and hypothesis for the whole suite; they have to stand before the first array is made."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling takes most of the suite's time, more than optimized machine code would save; XLA's fusion emitters take most
# of that. Environment variables, because processes that tests start have to make the same machine code: their bits are
# compared with those made here.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# XLA aborts the process where one of the eight devices is 40 seconds late for a collective; on a busy machine with two
# cores it can be.
os.environ["XLA_FLAGS"] = " ".join(
    (
        os.environ.get("XLA_FLAGS", ""),
        "--xla_cpu_use_fusion_emitters=false",
        "--xla_cpu_collective_call_warn_stuck_timeout_seconds=300",
        "--xla_cpu_collective_call_terminate_timeout_seconds=900",
    )
)

import hypothesis
import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
# Set by the variable JAX_COMPILATION_CACHE_DIR; without it nothing is kept.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
hypothesis.settings.register_profile("no_deadline", deadline=None)
hypothesis.settings.load_profile("no_deadline")


WITH_FINISHED_RUN = ("test_eval_set.py", "test_seen.py", "test_loop.py", "test_resume.py", "test_unwritable.py")
"""Files whose tests ask for `finished`, which costs each process that makes it the time of a whole run."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Deals whole files to processes, because tests of a file share compiled programs; `finished` is made in one."""
    from xdist.scheduler import LoadFileScheduling

    class FinishedRunOnce(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "finished" if file.endswith(WITH_FINISHED_RUN) else file

    return FinishedRunOnce(config, log)


def pytest_collection_modifyitems(items):
    """What takes longest, `finished` and other whole runs, goes first, so that no process is idle at the end."""

    def rank(item):
        return item.path.name not in WITH_FINISHED_RUN, not {"train", "evaluate"} & set(item.path.parts)

    items.sort(key=rank)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished run of `tiny_run.CONFIG`; a test that changes the folder copies it first."""
    import tiny_run

    home = tmp_path_factory.mktemp("finished")
    file = tiny_run.write_config(home)
    code, out, err = tiny_run.command("train", file, "--run_dir", str(home / "run"))
    assert (code, err) == (0, "")
    return tiny_run.Finished(file, home / "run", out)
