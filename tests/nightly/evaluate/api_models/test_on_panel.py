"""An API model on a panel whose items are played on another server."""

import dataclasses

import tiny_run
from fake_api import FakeApi
from maze_model import walk
from serving import running

from agentrl_jax.services.environments.maze import SERVICE, STARTS, Maze
from agentrl_jax.services.protocol import ROUTES
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits


def evaluate(url, out, *words):
    return tiny_run.command("eval", "--api", "m", "--base_url", url, "--out", str(out), *words)


def test_a_server_with_other_items(tmp_path):
    """The replies are kept, and there is no record."""

    class Other(Maze):
        def reset(self, item):
            return super().reset((item + 1) % len(STARTS))

    served = dataclasses.replace(SERVICE, make=lambda upstream: Other())
    with running(create_app(served, ROUTES["maze"], Limits())) as server, FakeApi(walk).running() as url:
        code, out, err = evaluate(url, tmp_path / "m", "--panel", "maze-v1", "--url", server, "--json")
    assert (code, out) == (2, "")
    assert f"--panel is maze-v1, but item 0 begins with another text on the server at {server}" in err
    assert not (tmp_path / "m" / "record.json").exists()
    assert len((tmp_path / "m" / "episodes.jsonl").read_text().splitlines()) == 25
