"""`--screenshots`: in whatever way a service is played, each shows the state of its turn, and the page has them."""

import base64
import dataclasses
import io
import json
import zlib

import pytest
import tiny_run
from evaluating import refusal, result_of
from fake_api import FakeApi
from maze_model import replies_in
from page_runs import decode_page, episodes_of
from PIL import Image
from serving import running

from agentrl_jax.evaluate.eval_set import evaluate_run
from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.formats.episodes import read_together
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.environments.maze.env import MOVES, STARTS, Maze, describe
from agentrl_jax.services.protocol import routes_of
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits
from agentrl_jax.viewer import export, screenshots
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.log_data import LogData


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """The maze gives screenshots, of one pixel, whose color is the place of the agent."""

    def render(maze):
        file = io.BytesIO()
        Image.new("RGB", (1, 1), (*maze._cell, 0)).save(file, "PNG")
        return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"

    monkeypatch.setattr(Maze, "render", render, raising=False)
    drawn = dataclasses.replace(routes_of("maze"), screenshot=("POST", "render"), post_views=("render",))
    monkeypatch.setattr("agentrl_jax.services.environments.maze.protocol.ROUTES", drawn)


def shown_by(image):
    data = base64.b64decode(image.removeprefix("data:image/png;base64,"), validate=True)
    row, column, _ = Image.open(io.BytesIO(data)).getpixel((0, 0))
    return describe((row, column))


def images(page):
    _, (_, *blocks) = decode_page(page)
    return [
        [(header["scenes"]["actions"][action], header["scenes"]["images"][image]) for action, image in scenes]
        for header, columns in blocks
        for scenes in episodes_of(columns, "scene_action", "scene_image")
    ]


def assert_pictured(folder, page):
    """Every scene has the screenshot of its text; returns the number of scenes beyond the last text."""
    beyond = 0
    episodes = (episode for of_file in read_together(folder) for episode in of_file)
    for episode, scenes in zip(episodes, images(page), strict=True):
        texts = [turn.message for turn in episode.turns] + ([episode.unanswered] if episode.unanswered else [])
        shown = [shown_by(image) for _, image in scenes]
        assert shown[: len(texts)] == [text.removesuffix("Action:") for text in texts]
        assert len(scenes) == len(episode.turns) + 1
        beyond += len(scenes) - len(texts)
    return beyond


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


@pytest.mark.nightly
def test_of_a_scripted_policy_here_and_on_a_server(tmp_path, monkeypatch):
    folder, lines = tmp_path / "new", []
    options = {"items": "3,0-1", "plays": 2, "turns": 4, "record": folder, "screenshots": True, "report": lines.append}
    with running(create_app(get_service("maze"), routes_of("maze"), Limits())) as url:
        evaluate_scripted("maze", "random", url=url, **options)
    assert f"30 screenshots in {folder / 'screenshots'}" in lines
    page = export.page([RunData(folder)])
    assert assert_pictured(folder, page) == 0
    assert len({image for scenes in images(page) for _, image in scenes}) > 3
    # The end has one without a text, and a page has a limit.
    folder, lines = tmp_path / "other", []
    evaluate_scripted("maze", "oracle", items="0,7", record=folder, screenshots=True)
    page = export.page([RunData(folder)])
    assert assert_pictured(folder, page) == 2
    monkeypatch.setattr(screenshots, "MAX_CHARACTERS", 300)
    found = images(export.page([RunData(folder, note=lines.append)]))
    assert [image for scenes in found for _, image in scenes if image] == [found[0][0][1], found[0][1][1]]
    assert len([line for line in lines if "screenshots beyond" in line]) == 1
    # Items may not be known any more.
    items, folder = tmp_path / "items.json", tmp_path / "of items"
    items.write_text(json.dumps([{"item_id": "maze_3"}]))
    evaluate_scripted("maze", "oracle", items=str(items), record=folder, screenshots=True)
    config = (folder / "config.yaml").read_text()
    for known, missing in (("nowhere.json", True), ("3", False)):
        lines = []
        (folder / "config.yaml").write_text(config.replace("held_out: '3'", f"held_out: '{known}'"))
        found = images(export.page([RunData(folder, note=lines.append)]))
        assert any(image for scenes in found for _, image in scenes) != missing
        assert any(line.startswith("no screenshots: ") for line in lines) == missing


@pytest.mark.nightly
def test_of_a_run(served, tmp_path, monkeypatch):
    """Greedy play and samples have their own. Nine levels in batches of eight: seven are played twice, without them."""
    played, moves = Maze.step, list(MOVES)
    anyhow = lambda maze, action: played(maze, moves[zlib.crc32(action.encode()) % len(moves)])  # noqa: E731
    monkeypatch.setattr(Maze, "step", anyhow)
    folder, lines = tmp_path / "new", []
    options = {"temperature": 3.0, "record": folder, "screenshots": True, "report": lines.append}
    assert evaluate_run(served, episodes=9, samples=1, **options)["episodes"] == 9
    assert any(line.startswith("54 screenshots in ") for line in lines)
    assert_pictured(folder, export.page([RunData(folder)]))
