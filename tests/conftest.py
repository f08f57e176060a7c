"""Settings of JAX and hypothesis for the whole suite; they have to stand before the first array is made."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import hypothesis
import jax
import pytest

jax.config.update("jax_num_cpu_devices", 8)
# Set by the variable JAX_COMPILATION_CACHE_DIR; without it nothing is kept.
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
hypothesis.settings.register_profile("no_deadline", deadline=None)
hypothesis.settings.load_profile("no_deadline")


def pytest_collection_modifyitems(items):
    """Whole runs, which take longest, go first, so that two processes are busy to the end."""
    items.sort(key=lambda item: not {"train", "evaluate"} & set(item.path.parts))


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished run of `tiny_run.CONFIG`; a test that changes the folder copies it first."""
    import tiny_run

    home = tmp_path_factory.mktemp("finished")
    file = tiny_run.write_config(home)
    code, out, err = tiny_run.command("train", file, "--run_dir", str(home / "run"))
    assert (code, err) == (0, "")
    return tiny_run.Finished(file, home / "run", out)
