"""Failed requests are repeated at once."""

import pytest

from agentrl_jax.evaluate.api_models import client


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(client, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(client, "LONGEST_PAUSE", 0.01)
