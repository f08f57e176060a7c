"""`--screenshots`: in whatever way a service is played, each shows the state of its turn, and the page has them."""

import json
import zlib

from pictured_maze import assert_pictured, drawn, images  # noqa: F401
from serving import running

from agentrl_jax.evaluate.eval_set import evaluate_run
from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.environments.maze.env import MOVES, Maze
from agentrl_jax.services.protocol import routes_of
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import Limits
from agentrl_jax.viewer import export, screenshots
from agentrl_jax.viewer.data import RunData


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
