"""Slow checks of what the quick tests of the same name check."""

import base64
import io
import zlib

from page_runs import decode_page
from PIL import Image

from agentrl_jax.evaluate.eval_set import evaluate_run
from agentrl_jax.formats.episodes import read_together
from agentrl_jax.services.environments.maze import MOVES, Maze, describe
from agentrl_jax.viewer import export
from agentrl_jax.viewer.data import RunData


def shown_by(image):
    """The text that the maze shows in the place of a screenshot."""
    data = base64.b64decode(image.removeprefix("data:image/png;base64,"), validate=True)
    row, column, _ = Image.open(io.BytesIO(data)).getpixel((0, 0))
    return describe((row, column))


def images(page):
    """Action and image of every scene of every episode of a page."""
    _, (_, *blocks) = decode_page(page)
    found = []
    for header, columns in blocks:
        named, scenes = header["scenes"], zip(columns["scene_action"], columns["scene_image"], strict=True)
        rows = iter([(named["actions"][action], named["images"][image]) for action, image in scenes])
        found += [[next(rows) for _ in range(count)] for count in columns["scene_count"]]
    return found


def assert_pictured(folder, page):
    """Every scene has the screenshot of its text; returns the number of scenes beyond the last text."""
    beyond = 0
    episodes = (episode for of_file in read_together(folder) for episode in of_file)
    for episode, scenes in zip(episodes, images(page), strict=True):
        texts = [turn.message for turn in episode.turns] + ([episode.unanswered] if episode.unanswered else [])
        assert [shown_by(image) for _, image in scenes][: len(texts)] == [
            text.removesuffix("Action:") for text in texts
        ]
        assert len(scenes) == len(episode.turns) + 1
        beyond += len(scenes) - len(texts)
    return beyond


def move_anyhow(monkeypatch):
    """Whatever an agent writes is a move of the maze."""
    played, moves = Maze.step, list(MOVES)
    monkeypatch.setattr(
        Maze, "step", lambda maze, action: played(maze, moves[zlib.crc32(action.encode()) % len(moves)])
    )


def test_of_a_run(served, tmp_path, monkeypatch):
    """Greedy play and samples have their own. Nine levels in batches of eight: seven are played twice, without them."""
    move_anyhow(monkeypatch)
    folder, lines = tmp_path / "new", []
    options = {"temperature": 3.0, "record": folder, "screenshots": True, "report": lines.append}
    assert evaluate_run(served, episodes=9, samples=1, **options)["episodes"] == 9
    assert sorted(path.name for path in (folder / "screenshots").iterdir()) == ["play-1", "play-2"]
    assert any(line.startswith("54 screenshots in ") for line in lines)
    assert_pictured(folder, export.page([RunData(folder)]))
