"""Boards of recorded episodes show what the agent read, or there are none."""

import dataclasses
import logging
import re

import numpy as np
import pytest
import tiny_run
from refusing import refusal
from scripted_run import LAKE_SYMBOLS, MOVES, ScriptedRun, board, load, states_read

import envs_jax
from agentrl_jax.runs.rollout_records import read_record, write_record
from agentrl_jax.viewer import scenes
from agentrl_jax.viewer.scenes import SPRITES, run_scenes

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


def test_there_is_a_scene_for_every_executed_action_and_none_after_the_end(three):
    config, record = three
    ended = 0
    for row, of_episode in enumerate(run_scenes("runs/x", config, record)):
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


def test_every_turn_is_compared(three, caplog):
    config, record = three
    row = int(np.argmax(record.num_turns))
    hashes, ends = record.state_hash.copy(), record.terminated.copy()
    hashes[row, record.num_turns[row] - 1, 1] ^= 1
    missing, warnings = without_boards(caplog, config, dataclasses.replace(record, state_hash=hashes))
    assert missing == [row]
    assert "1 of 36 episodes" in warnings[0]
    ends[row, record.num_turns[row] - 1] ^= True
    assert without_boards(caplog, config, dataclasses.replace(record, terminated=ends))[0] == [row]


def test_records_of_another_configuration_give_no_boards(three, caplog):
    config, record = three
    everything = list(range(36))
    assert without_boards(caplog, config, changed(record, tasks=("A", "B", "C")))[0] == everything
    unknown = np.where(record.actions == 0, 99, record.actions)
    rows = np.flatnonzero((record.actions == 0).any(axis=(1, 2))).tolist()
    assert without_boards(caplog, config, dataclasses.replace(record, actions=unknown))[0] == rows
    for turns in (0, 2**30):
        wrong = np.where(record.member == 1, turns, record.num_turns).astype(np.int32)
        missing = without_boards(caplog, config, dataclasses.replace(record, num_turns=wrong))[0]
        assert missing == np.flatnonzero(record.member == 1).tolist()


def test_a_level_file_that_is_gone_gives_no_boards(three, caplog):
    config, record = three
    gone, notes = config.replace(tasks=(config.tasks[SOKOBAN].replace(levels="gone.txt"),)), []
    assert run_scenes("runs/x", gone, record) is None
    assert "no boards of SimpleSokoban: gone.txt: " in caplog.text
    assert run_scenes("runs/x", gone, record, notes.append) is None
    assert (len(notes), len(caplog.records)) == (1, 1)


def with_scene(monkeypatch, scene):
    replay_of = scenes._replay_of

    def changed_for_bandit(task):
        replay = replay_of(task)
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


@pytest.mark.parametrize(
    ("scene", "why"),
    [
        (lambda *_: envs_jax.scenes.grid_scene([[["teacher"]]]), "'teacher'"),
        (lambda *_: {}["board"], "KeyError: 'board'"),
        (lambda *_: {"kind": "grid"}, "KeyError: 'cells'"),
        (lambda *_: {"kind": "grid", "cells": [[[[]]]]}, "TypeError: "),
        (lambda *_: {"kind": "text", "lists": [{}]}, "KeyError: 'title'"),
    ],
)
def test_whatever_stops_a_scene_is_a_refusal(three, monkeypatch, scene, why):
    config, record = three
    with_scene(monkeypatch, scene)
    assert why in str(refusal(run_scenes, "runs/x", config, only_bandits(record)))


def test_a_scene_written_by_hand_is_drawn(three, monkeypatch):
    """With numbers where the page expects texts."""
    config, record = three
    lists = [{"title": 1, "entries": [(2, 3.5)]}]
    with_scene(monkeypatch, lambda env, *_: {"kind": "text", "text": [np.int32(4)], "lists": lists, "x": env})
    found = run_scenes("runs/x", config, only_bandits(record))
    for shown in (scene for of_episode in found for scene in of_episode):
        assert (shown["text"], shown["lists"]) == (["4"], [{"title": "1", "entries": [["2", "3.5"]]}])
        assert shown.keys() == {"turn", "action", "kind", "text", "lists"}
    assert any(found)
