"""Boards of recorded episodes show what the agent read, or there are none; scenes of texts are the services'."""

import dataclasses
import json
import logging
import re

import api_folders
import numpy as np
import pytest
import tiny_run
from page_runs import decode_page, episodes_of
from refusing import refusal
from scripted_run import LAKE_SYMBOLS, MOVES, ScriptedRun, board, load, states_read

import envs_jax
from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.formats.episodes import read_episodes
from agentrl_jax.runs.rollout_records import read_record, record_path, write_record
from agentrl_jax.services.scenes import text_scenes
from agentrl_jax.viewer import export, scenes
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.log_data import LogData
from agentrl_jax.viewer.scenes import SPRITES, run_scenes
from agentrl_jax.viewer.text_scenes import attempts_scenes, served_scenes

THREE = """
rollout: {group_size: 3}
tasks: [{env: FrozenLake, groups: 6}, {env: SimpleSokoban, groups: 4, levels: LEVELS}, {env: Bandit, groups: 2}]
prompt: {max_turns: 4, max_actions_per_turn: 3, max_actions: 7, max_response_tokens: 14}
"""
LAKE, SOKOBAN, BANDIT = range(3)
ITERATION = 3

SOKOBAN_SYMBOLS = {
    **{"wall": "#", "floor": "_", "floor+target": "O", "floor+box on target": "√", "floor+box": "X"},
    **{"floor+player": "P", "floor+player+target": "S"},
}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    (folder / "levels.txt").write_text(tiny_run.LEVELS)
    config = load(THREE.replace("LEVELS", str(folder / "levels.txt")))
    actions = {"FrozenLake": MOVES, "SimpleSokoban": MOVES, "Bandit": ("Teacher", "Engineer")}
    record = ScriptedRun(config, actions).record(iteration=ITERATION, roll_backs=1)
    return config, read_record(write_record(folder, record))


def sprites(scene):
    return {name for row in scene.get("cells", []) for cell in row for name in cell}


def without_boards(caplog, config, record):
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found = run_scenes("runs/x", config, record)
    return [row for row, of_episode in enumerate(found) if not of_episode], [r.getMessage() for r in caplog.records]


def changed(record, **values):
    return dataclasses.replace(record, header=dataclasses.replace(record.header, **values))


def test_boards_are_what_the_agent_read(three, caplog):
    config, record = three
    found = run_scenes("runs/x", config, record)
    assert caplog.records == []
    assert len(found) == len(record.task) == 36
    assert record.group.max() >= config.groups, "no group was moved to another level"
    checked = [0, 0, 0]
    for row, of_episode in enumerate(found):
        task = record.task[row]
        for read, scene in states_read(record, row, of_episode):
            if task == BANDIT:
                (first, second) = re.search(r"choose from: (\w+) and (\w+)\.", read).groups()
                assert [line.split(":")[0] for line in scene["text"][:2]] == [first, second]
            else:
                assert board(scene, LAKE_SYMBOLS if task == LAKE else SOKOBAN_SYMBOLS) in read
            checked[task] += 1
    assert min(checked) >= 6
    # The agent slips, falls, and pushes: otherwise this test would show little.
    lakes = [scene for row, of_episode in enumerate(found) if record.task[row] == LAKE for scene in of_episode]
    assert {"O", "P", "X"} <= set("".join(board(scene, LAKE_SYMBOLS) for scene in lakes))
    assert all(name in SPRITES for of_episode in found for scene in of_episode for name in sprites(scene))
    # There is a scene for every executed action, and none after the end.
    ended = 0
    for row, of_episode in enumerate(found):
        executed = np.argwhere(record.actions[row] >= 0)
        names = envs_jax.make(config.tasks[record.task[row]].env)[0].actions
        expected = [(int(turn), names[record.actions[row, turn, place]]) for turn, place in executed]
        assert [(scene["turn"], scene["action"]) for scene in of_episode] == [(0, None), *expected]
        if record.task[row] == LAKE and record.terminated[row].any():
            (last,) = [cell for cells in of_episode[-1]["cells"] for cell in cells if "player" in cell]
            assert ("goal" if record.success[row].any() else "hole") in last
            ended += 1
        assert not any("fallen" in sprites(scene) for scene in of_episode[:-1])
    assert ended


def test_another_key_or_noise_gives_no_boards(three, caplog):
    config, record = three
    lakes = {*np.flatnonzero(record.task == LAKE)}  # the levels of Sokoban are from a file, two bandits may look alike
    for other, header in (
        (config, {"iteration": ITERATION + 1}),
        (config, {"roll_backs": 0}),
        (config.replace(seed=config.seed + 1), {}),
    ):
        missing, (said,) = without_boards(caplog, other, changed(record, **header))
        assert lakes <= set(missing)
        assert f"{len(missing)} of 36 episodes" in said
    shared = config.replace(rollout=config.rollout.replace(shared_noise=True))
    missing, _ = without_boards(caplog, shared, record)
    assert set() < set(missing) <= lakes  # Sokoban has no noise, and a bandit's is not shown


def test_every_turn_task_and_action_is_compared(three, caplog):
    config, record = three
    row = int(np.argmax(record.num_turns))
    hashes, ends = record.state_hash.copy(), record.terminated.copy()
    hashes[row, record.num_turns[row] - 1, 1] ^= 1
    missing, warnings = without_boards(caplog, config, dataclasses.replace(record, state_hash=hashes))
    assert missing == [row]
    assert "1 of 36 episodes" in warnings[0]
    ends[row, record.num_turns[row] - 1] ^= True
    assert without_boards(caplog, config, dataclasses.replace(record, terminated=ends))[0] == [row]
    assert without_boards(caplog, config, changed(record, tasks=("A", "B", "C")))[0] == list(range(36))
    unknown = np.where(record.actions == 0, 99, record.actions)
    rows = np.flatnonzero((record.actions == 0).any(axis=(1, 2))).tolist()
    assert without_boards(caplog, config, dataclasses.replace(record, actions=unknown))[0] == rows
    for turns in (0, 2**30):
        wrong = np.where(record.member == 1, turns, record.num_turns).astype(np.int32)
        missing = without_boards(caplog, config, dataclasses.replace(record, num_turns=wrong))[0]
        assert missing == np.flatnonzero(record.member == 1).tolist()


def with_scene(monkeypatch, scene):
    replay_of = scenes._replay_of

    def changed_for_bandit(*arguments):
        replay = replay_of(*arguments)
        return dataclasses.replace(replay, scene=scene) if replay.name == "Bandit" else replay

    monkeypatch.setattr(scenes, "_replay_of", changed_for_bandit)


def only_bandits(record):
    return dataclasses.replace(record, task=np.where(record.task == BANDIT, BANDIT, -1))


def test_an_environment_may_have_no_scenes(three, caplog, monkeypatch):
    config, record = three
    with_scene(monkeypatch, None)
    assert without_boards(caplog, config, only_bandits(record)) == (list(range(36)), [])
    alone = config.replace(tasks=config.tasks[BANDIT:])
    assert run_scenes("runs/x", alone, changed(record, tasks=("Bandit",))) is None
    assert run_scenes("runs/x", load("tasks: [{env: textcraft, groups: 1}]"), record) is None
    # A level file that is gone gives no boards.
    gone, notes = config.replace(tasks=(config.tasks[SOKOBAN].replace(levels="gone.txt"),)), []
    assert run_scenes("runs/x", gone, record) is None
    assert "no boards of SimpleSokoban: gone.txt: " in caplog.text
    assert run_scenes("runs/x", gone, record, notes.append) is None
    assert (len(notes), len(caplog.records)) == (1, 1)


def test_whatever_stops_a_scene_is_a_refusal(three, monkeypatch):
    config, record = three
    for scene, why in (
        (lambda *_: envs_jax.scenes.grid_scene([[["teacher"]]]), "'teacher'"),
        (lambda *_: {}["board"], "KeyError: 'board'"),
        (lambda *_: {"kind": "grid"}, "KeyError: 'cells'"),
        (lambda *_: {"kind": "text", "lists": [{}]}, "KeyError: 'title'"),
    ):
        with monkeypatch.context() as patch:
            with_scene(patch, scene)
            assert why in str(refusal(run_scenes, "runs/x", config, only_bandits(record)))
    # One that is written by hand is drawn, with numbers where the page expects texts.
    lists = [{"title": 1, "entries": [(2, 3.5)]}]
    with_scene(monkeypatch, lambda env, *_: {"kind": "text", "text": [np.int32(4)], "lists": lists, "x": env})
    found = run_scenes("runs/x", config, only_bandits(record))
    for shown in (scene for of_episode in found for scene in of_episode):
        assert (shown["text"], shown["lists"]) == (["4"], [{"title": "1", "entries": [["2", "3.5"]]}])
        assert shown.keys() == {"turn", "action", "kind", "text", "lists"}
    assert any(found)


def scenes_in(header, columns):
    """The scenes of every episode of a block: turn, action, size and lists."""
    found = header["scenes"]

    def scene(turn, action, width, lists):
        return int(turn), found["actions"][action], int(width), [found["lists"][i] for i in found["list_sets"][lists]]

    names = [f"scene_{name}" for name in ("turn", "action", "width", "lists")]
    return [[scene(*numbers) for numbers in scenes] for scenes in episodes_of(columns, *names)]


def test_a_record_of_a_service_has_the_scenes_of_its_texts(tmp_path):
    crafted = tmp_path / "textcraft"
    evaluate_scripted("textcraft", "random", items="0-5", turns=6, seed=1, record=crafted)
    _, (_, (header, columns)) = decode_page(export.page([RunData(crafted)]))
    episodes = list(read_episodes(crafted))
    assert any(episode.unanswered for episode in episodes)
    for episode, shown in zip(episodes, scenes_in(header, columns), strict=True):
        texts = [*(turn.message for turn in episode.turns), *filter(None, [episode.unanswered])]
        expected = text_scenes("textcraft", texts, [turn.response for turn in episode.turns])
        assert [scene[:2] for scene in shown] == [(scene["turn"], scene["action"]) for scene in expected]
        assert [scene[3] for scene in shown] == [scene["lists"] for scene in expected]
    # There are none without boards, or with unknown tokens.
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
    (shown, *_) = [of_episode for block in blocks for of_episode in scenes_in(*block)]
    assert [turn for turn, *_ in shown] == [0, *range(len(shown) - 1)]
    assert {width for _, _, width, _ in shown} == {13}
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
