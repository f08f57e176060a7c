"""`--screenshots`: in whatever way a service is played, each shows the state of its turn, and the page has them."""

import dataclasses

import tiny_run
from evaluating import refusal, result_of
from fake_api import FakeApi
from maze_model import replies_in
from pictured_maze import assert_pictured, drawn, images, shown_by  # noqa: F401
from serving import running

from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.environments.maze.env import STARTS, Maze, describe
from agentrl_jax.services.protocol import routes_of
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits
from agentrl_jax.viewer import export
from agentrl_jax.viewer.log_data import LogData


class Browser(Maze):
    def observation_metadata(self):
        return {"text": {"obs_nodes_info": {}}, "image": self.render()}


def test_of_a_browser(tmp_path):
    """A service that is played on a server only has no random play beside it."""
    served = dataclasses.replace(
        get_service("maze"), name="webarena", make=lambda upstream: Browser(), views=("observation_metadata",)
    )
    api = FakeApi(lambda body: "I go. ```move down```")
    with running(create_app(served, routes_of("webarena"), Limits())) as url, api.running() as model:
        words = ("--env", "webarena", "--url", url, "--items", "0-1", "--turns", "2", "--screenshots")
        out = tmp_path / "m"
        result = result_of("eval", "--api", "m", "--base_url", model, "--out", out, *words)
    assert ("random" in result, result["outcomes"]["null"]) == (False, [0.0, 0.0])
    found = images(export.page([LogData(out)]))
    assert [len(scenes) for scenes in found] == [3, 3]
    assert next(shown_by(image) for _, image in found[0]) == describe(STARTS[0])
    words = ("--policy", "random", "--env", "webarena", "--url", url, "--items", "0")
    assert "what can be done in webarena is not known here" in str(refusal("eval", *words))


def test_of_an_api_model(tmp_path):
    def walk(body):
        turn = len(body["messages"]) // 2
        return (401, {}, b"{}") if turn == 3 and stopped else f"Action: move {('down', 'right', 'up')[turn % 3]}"

    api, stopped = FakeApi(walk), True
    words = ("--env", "maze", "--items", "0,7", "--turns", "4", "--samples", "2", "--concurrency", "1", "--screenshots")
    with api.running() as url:
        command = ("eval", "--api", "m", "--base_url", url, "--out", str(tmp_path / "m"), *words)
        assert tiny_run.command(*command)[0] == 2
        stopped = False
        code, _, err = tiny_run.command(*command)
    assert (code, "20 screenshots in" in err, "have none" in err) == (0, True, False), err
    texts = {key: row["added"][-1]["content"] for key, row in replies_in(tmp_path / "m").items()}
    found = images(export.page([LogData(tmp_path / "m")]))
    for (item, sample), scenes in zip([(0, 0), (0, 1), (7, 0), (7, 1)], found, strict=True):
        assert [shown_by(image) for _, image in scenes[:-1]] == [texts[item, sample, turn] for turn in range(4)]


def test_what_cannot_be_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, key in (
        ("--policy random --env maze", "--screenshots"),
        ("--policy random --env wordle --record new", "wordle"),
        ("--policy random --panel sokoban-6x6-v2 --record new", "Sokoban"),
        ("--api m --base_url http://x --env FrozenLake --out new", "FrozenLake"),
        ("--api m --base_url http://x --env maze --attempts 2 --out new", "attempt"),
    ):
        refused = str(refusal("eval", *words.split(), "--screenshots"))
        assert ("--screenshots" in refused, key in refused) == (True, True)
        assert not list(tmp_path.iterdir())
