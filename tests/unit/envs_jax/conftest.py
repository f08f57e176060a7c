import pytest

from envs_jax.babyai import search
from envs_jax.checks import reachable


@pytest.fixture(scope="session", autouse=True)
def small_batches():
    """Searches of few levels fill no batch of the usual size, and every batch is computed in full."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (search, reachable):
            patch.setattr(module, "BATCH", 64)
        yield
