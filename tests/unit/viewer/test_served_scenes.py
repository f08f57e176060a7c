"""Scenes of episodes that are known by their texts: in records of services, API models' evaluations and logs."""

import dataclasses
import json

import api_folders
import page_runs
import pytest
from page_runs import decode_page

from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.formats.episodes import read_episodes
from agentrl_jax.runs.rollout_records import read_record, record_path
from agentrl_jax.services.scenes import text_scenes
from agentrl_jax.viewer import export
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.log_data import LogData
from agentrl_jax.viewer.text_scenes import attempts_scenes, served_scenes


def scenes_in(header, columns):
    """The scenes of every episode of a block: turn, action, size and lists."""
    found = header["scenes"]

    def scene(turn, action, width, lists):
        return int(turn), found["actions"][action], int(width), [found["lists"][i] for i in found["list_sets"][lists]]

    names = [f"scene_{name}" for name in ("turn", "action", "width", "lists")]
    return [[scene(*numbers) for numbers in scenes] for scenes in page_runs.episodes_of(columns, *names)]


@pytest.fixture(scope="module")
def crafted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "textcraft"
    evaluate_scripted("textcraft", "random", items="0-5", turns=6, seed=1, record=folder)
    return folder


def test_a_record_of_a_service_has_the_scenes_of_its_texts(crafted):
    _, (_, (header, columns)) = decode_page(export.page([RunData(crafted)]))
    episodes = list(read_episodes(crafted))
    assert any(episode.unanswered for episode in episodes)
    for episode, scenes in zip(episodes, scenes_in(header, columns), strict=True):
        texts = [*(turn.message for turn in episode.turns), *filter(None, [episode.unanswered])]
        expected = text_scenes("textcraft", texts, [turn.response for turn in episode.turns])
        assert [scene[:2] for scene in scenes] == [(scene["turn"], scene["action"]) for scene in expected]
        assert [scene[3] for scene in scenes] == [scene["lists"] for scene in expected]


def test_no_scenes_without_boards_or_with_unknown_tokens(crafted):
    _, (_, (header, _)) = decode_page(export.page([RunData(crafted, boards=False)]))
    assert "scenes" not in header
    record, data = read_record(record_path(crafted, 1)), RunData(crafted)
    broken = dataclasses.replace(record, tokens=record.tokens + data._tokenizer.vocab_size)
    assert served_scenes(data._config, broken, data._tokenizer, data._screenshots) is None


def test_an_attempt_begins_with_nothing():
    first = "Goal: craft stick."
    texts = [first, "Got 1 log", f"That did not work. {first}\n{first}", "Got 2 stone"]
    found = attempts_scenes("textcraft", texts, ["Action: get 1 log", "Action: x", "Action: get 2 stone"], [2])
    carried = [scene["lists"][1]["entries"] for scene in found]
    assert carried == [[["nothing yet", ""]], [["log", "1"]], [["nothing yet", ""]], [["stone", "2"]]]
    actions = [None, "get 1 log", "the start of attempt 2", "get 2 stone"]
    assert [(scene["turn"], scene["action"]) for scene in found] == [*zip([0, 0, 1, 2], actions)]


def test_an_api_model_has_scenes(tmp_path):
    index, (_, *blocks) = decode_page(export.page([LogData(api_folders.write_folder(tmp_path / "out"))]))
    (scenes, *_) = [of_episode for block in blocks for of_episode in scenes_in(*block)]
    assert [turn for turn, *_ in scenes] == [0, *range(len(scenes) - 1)]
    assert {width for _, _, width, _ in scenes} == {13}
    stacks = {name for header, _ in blocks for stack in header["scenes"]["stacks"] for name in stack}
    assert {"player", "goal", "wall"} <= stacks <= index["runs"][0]["sprites"].keys()


@pytest.mark.parametrize(
    ("item", "drawn"), [("textcraft_3", True), ("sqlgym_3", False), ("textcraft", False), (7, False)]
)
def test_a_log_of_agentgym_has_the_scenes_of_its_item(tmp_path, item, drawn):
    goal = "Crafting commands:\ncraft 4 oak planks using 1 oak logs\n\nGoal: craft oak planks.\n"
    said = [("human", "You craft things."), ("gpt", "OK"), ("human", goal)]
    said += [("gpt", "Thought: x\n\nAction: get 1 oak logs"), ("human", "Got 1 oak logs")]
    row = {"conversations": [{"from": who, "value": text} for who, text in said], "item_id": item, "reward": 0}
    (tmp_path / "log.json").write_text(json.dumps([row]))
    _, (_, (header, columns)) = decode_page(export.page([LogData(tmp_path / "log.json")]))
    assert ("scenes" in header) == drawn
    if drawn:
        ((start, after),) = scenes_in(header, columns)
        assert (start[:2], after[:2]) == ((0, ""), (1, "get 1 oak logs"))
        assert after[3][1]["entries"] == [["oak logs", "1"]]
