"""Settings of JAX and hypothesis for the whole suite; they have to stand before the first array is made."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling takes most of the suite's time, more than optimised machine code would save; XLA's fusion emitters take most
# of that. Environment variables, because processes that tests start have to make the same machine code: their bits are
# compared with those made here.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_cpu_use_fusion_emitters=false"

import hypothesis
import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
# Set by the variable JAX_COMPILATION_CACHE_DIR; without it nothing is kept.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
hypothesis.settings.register_profile("no_deadline", deadline=None)
hypothesis.settings.load_profile("no_deadline")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Deals the tests to processes: a file stays in one of them, and all that use the finished run in the same.

    What takes longest goes first, so that two processes are busy to the end.
    """
    finished = {item.path for item in items if "finished" in item.fixturenames}
    for item in items:
        group = "finished" if item.path in finished else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: (item.path not in finished, not {"train", "evaluate"} & set(item.path.parts)))


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished run of `tiny_run.CONFIG`; a test that changes the folder copies it first."""
    import tiny_run

    home = tmp_path_factory.mktemp("finished")
    file = tiny_run.write_config(home)
    code, out, err = tiny_run.command("train", file, "--run_dir", str(home / "run"))
    assert (code, err) == (0, "")
    return tiny_run.Finished(file, home / "run", out)
