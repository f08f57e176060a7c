"""Screenshots of a maze, and what they show on a page."""

import base64
import dataclasses
import io

import pytest
from page_runs import decode_page, episodes_of
from PIL import Image

from agentrl_jax.formats.episodes import read_together
from agentrl_jax.services.environments.maze.env import Maze, describe
from agentrl_jax.services.protocol import routes_of


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
