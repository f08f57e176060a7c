"""Boards of episodes whose noise a group shares."""

from scripted_run import LAKE_SYMBOLS, MOVES, ScriptedRun, board, load, states_read

from agentrl_jax.viewer import scenes
from agentrl_jax.viewer.scenes import run_scenes

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
