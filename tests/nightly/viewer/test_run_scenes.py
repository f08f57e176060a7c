"""Boards of BabyAI, which show what its text says, and of episodes whose noise a group shares."""

import re

import numpy as np
import pytest
from scripted_run import LAKE_SYMBOLS, MOVES, ScriptedRun, board, load, states_read

from agentrl_jax.viewer import scenes
from agentrl_jax.viewer.scenes import run_scenes
from envs_jax.babyai import items
from envs_jax.babyai.tables import shape_of

ROOMS = """
rollout: {group_size: 3}
tasks: [{env: BabyAI-PutNextS7N4Carrying, options: {actions: primitive}, groups: 4, levels: PACK}]
prompt: {max_turns: 6, max_actions_per_turn: 1, max_actions: 5, max_response_tokens: 8}
"""
SHARED = """
rollout: {group_size: 3, shared_noise: true}
tasks: [{env: FrozenLake, groups: 4}]
prompt: {max_turns: 3, max_actions_per_turn: 2, max_actions: 6, max_response_tokens: 6}
"""


def test_noise_that_a_group_shares_and_several_dispatches(caplog, monkeypatch):
    config = load(SHARED)
    record = ScriptedRun(config, {"FrozenLake": MOVES}).record(iteration=1)
    found = run_scenes("runs/x", config, record)
    assert all(found)
    monkeypatch.setattr(scenes, "_ROWS", 5)
    assert run_scenes("runs/x", config, record) == found
    assert caplog.records == []
    for row, of_episode in enumerate(found):
        for read, scene in states_read(record, row, of_episode):
            assert board(scene, LAKE_SYMBOLS) in read


def small_pack(number):
    old, new = items.SHAPE, shape_of((number,))
    levels = items.load(tuple(i for i in items.stored_indices() if items.number_of(i) == number))
    headers = levels[:, old.height :].reshape(len(levels), -1)[:, : new.header]
    headers = np.pad(headers, ((0, 0), (0, (new.rows - new.height) * new.width - new.header)))
    grids = levels[:, : new.height, : new.width]
    return np.concatenate([grids, headers.reshape(len(levels), -1, new.width)], axis=1)


@pytest.fixture(scope="module")
def rooms(tmp_path_factory):
    pack = tmp_path_factory.mktemp("levels") / "pack.npy"
    np.save(pack, small_pack(23))
    config = load(ROOMS.replace("PACK", str(pack)))
    names = ("turn left", "turn right", "move forward", "pickup", "drop")
    return config, ScriptedRun(config, {"BabyAI-PutNextS7N4Carrying": names}).record(iteration=3)


def test_rooms_show_what_the_text_says(rooms, caplog):
    config, record = rooms
    found = run_scenes("runs/x", config, record)
    assert caplog.records == []
    things = carried = 0
    for row, of_episode in enumerate(found):
        for read, scene in states_read(record, row, of_episode):
            goal, carrying, _ = scene["text"]
            assert (f"{goal}\n" in read) == (scene["action"] is None)
            in_hand = re.search(r"You are carrying a ([a-z ]+)\.", read)
            assert carrying == f"Carrying: {in_hand[1] if in_hand else 'nothing'}."
            assert objects_in(scene) == objects_of(read)
            things += len(objects_of(read))
            carried += bool(in_hand)
    assert things > 20
    assert carried


def objects_of(read):
    """Names of the objects in a text, with steps ahead and to the right."""
    places = r"(?:right in front of you (\d+)|(\d+) steps in front of you and (\d+) steps to your (\w+))"
    found = re.findall(rf"There is a ([a-z ]+) \d+ {places}", read)
    signs = {"right": 1, "left": -1, "": 0}
    return sorted(
        (name, int(alone or ahead), int(aside or 0) * signs[side]) for name, alone, ahead, aside, side in found
    )


def objects_in(scene):
    cells = scene["cells"]
    named = [(y, x, name) for y, line in enumerate(cells) for x, cell in enumerate(line) for name in cell]
    ((row, column, side),) = [(y, x, name.split()[-1]) for y, x, name in named if name.startswith("player")]
    forward = {"right": (0, 1), "down": (1, 0), "left": (0, -1), "up": (-1, 0)}[side]
    right = forward[1], -forward[0]
    found = []
    for y, x, name in named:
        if "unseen" not in cells[y][x] and (y, x) != (row, column) and name not in ("floor", "wall", "lock"):
            down, across = y - row, x - column
            found.append((name, down * forward[0] + across * forward[1], down * right[0] + across * right[1]))
    return sorted(found)
