"""Boards of API models are what the models read, or there are none."""

import dataclasses
import random

import pytest
from fake_api import FakeApi, completion
from scripted_run import LAKE_SYMBOLS, MOVES, board

from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.viewer.api_folder import load_api_folder
from agentrl_jax.viewer.api_scenes import level_scenes
from agentrl_jax.viewer.log_data import LogData

ITEMS, ATTEMPTS = 10, 2


def answer(body):
    """Random moves, a reply without any, and one that is cut."""
    draw = random.Random(str(body["messages"]))
    text = f"<answer>{' || '.join(draw.choices(MOVES, k=2))}</answer>"
    return completion(text, finish="length") if draw.random() < 0.1 else text if draw.random() < 0.9 else "I wait"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("api") / "out"
    lakes = {"style": "compact", "turns": 3, "actions_per_turn": 2, "seed": 9, "attempts": ATTEMPTS}
    with FakeApi(answer).running() as url:
        evaluate_api("m", url, TaskOptions(env="FrozenLake", episodes=ITEMS, **lakes), out)
    return out


def drawn(folder, change=lambda episode: episode, **settings):
    episodes, _, known = load_api_folder(folder, pytest.fail)
    notes = []
    found = level_scenes(folder, known | settings, [change(episode) for episode in episodes], notes.append)
    return None if found is None else list(found), notes


@pytest.mark.nightly
def test_boards_are_what_the_model_read(folder):
    found, notes = drawn(folder)
    assert (len(found), notes) == (ITEMS, [])
    checked = again = lost = 0
    for episode, scenes in found:
        read = [message["content"] for message in episode.messages if message["role"] == "user"]
        for turn, text in enumerate(read):
            before = [scene for scene in scenes if scene["action"] is None or scene["turn"] < turn]
            assert board(before[-1], LAKE_SYMBOLS) in text
            checked += 1
        if episode.messages[-1].get("lost"):  # it was not carried out
            assert max(scene["turn"] for scene in scenes) < len(read) - 1 or len(scenes) == 1
            lost += 1
        again += any("attempt 2" in (scene["action"] or "") for scene in scenes)
        ends = {name for row in scenes[-1]["cells"] for cell in row for name in cell} & {"arrived"}
        assert bool(ends) == bool(episode.success)
    assert (checked > 2 * len(found), again > 0, lost > 0) == (True, True, True)
    assert LogData(folder).refresh()[0]["drawn"]
    assert not LogData(folder, boards=False).refresh()[0]["drawn"]


@pytest.mark.nightly
def test_other_levels_outcomes_and_texts_have_no_boards(folder):
    found, (note,) = drawn(folder, seed_of_levels=10)
    assert f"{ITEMS} of {ITEMS} episodes have no boards" in note
    assert not any(scenes for _, scenes in found)

    def changed(episode):
        if "item 0 " in episode.label:
            return dataclasses.replace(episode, success=not episode.success)
        message = {"role": "user", "content": "_"}
        return (
            dataclasses.replace(episode, messages=(message, *episode.messages[1:]))
            if "item 1 " in episode.label
            else episode
        )

    found, (note,) = drawn(folder, changed)
    without = {episode.label for episode, scenes in found if not scenes}
    assert without == {"item 0 · sample 1", "item 1 · sample 1"}
    for settings, count in (({"style": "chat"}, 0), ({"env": "maze"}, 0), ({"options": 3}, 1), ({"turns": "x"}, 1)):
        found, notes = drawn(folder, **settings)
        assert (found, len(notes)) == (None, count)
