"""Failed requests are repeated at once, and rows need not be on the disk."""

import pytest

from agentrl_jax.evaluate.api_models import client, journal


@pytest.fixture(autouse=True, scope="module")
def quick():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "FIRST_PAUSE", 0.001)
        patch.setattr(client, "LONGEST_PAUSE", 0.01)
        patch.setattr(journal.os, "fsync", lambda file: None)
        yield
