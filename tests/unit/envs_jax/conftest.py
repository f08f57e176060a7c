import pytest

from envs_jax.babyai import search


@pytest.fixture(scope="session", autouse=True)
def small_batches():
    """Searches of few levels fill no batch of the usual size, and every batch is computed in full."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "BATCH", 64)
        yield
