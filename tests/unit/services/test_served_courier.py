"""The service in `experiments/serve_courier.py` answers as a run expects."""

import itertools
import sys

import pytest
from paths import ROOT
from serving import running

from agentrl_jax.api import load_config
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.client import ServiceClient
from agentrl_jax.services.protocol import routes_of

EXPERIMENTS = ROOT / "experiments"


@pytest.fixture
def served(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    import serve_courier

    yield serve_courier
    for name in ("serve_courier", "host_environment"):
        sys.modules.pop(name)


def test_one_of_eight_ways_to_answer_solves_an_item(served):
    config = load_config(str(EXPERIMENTS / "courier.yaml"))
    assert (config.tasks[0].env, config.env.url) == ("todo", f"http://127.0.0.1:{served.PORT}")
    service, last = get_service("todo"), []
    with running(served.app) as url:
        client = ServiceClient(url, routes_of("todo"))
        handle = client.create(7)
        for sides in itertools.product(served.SIDES, repeat=3):
            first = client.reset(handle, 7)
            assert first.observation.startswith(served.Courier.instruction)
            steps = [client.step(handle, f"I go {side}.") for side in sides]
            assert [step.done for step in steps] == [False, False, True]
            last.append(steps[-1])
        client.close()
    assert sorted(round(3 * step.reward) for step in last) == [0, 1, 1, 1, 2, 2, 2, 3]
    assert sum(service.solved(step) for step in last) == 1
