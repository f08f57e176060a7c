"""`agentrl eval --policy ... --record`: what scripted policies played, for the page and the formats of other tools."""

import numpy as np
import pytest
from evaluating import refusal

from agentrl_jax.evaluate import scripted_recording
from agentrl_jax.evaluate.panels import Panel, panel_levels
from agentrl_jax.evaluate.scripted import evaluate_on_panel, evaluate_scripted
from agentrl_jax.formats.atif import as_atif
from agentrl_jax.formats.episodes import read_episodes
from agentrl_jax.runs.rollout_records import read_record, record_path, recorded_iterations
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.services.catalog import get_service
from agentrl_jax.viewer.columns import unpack
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.scenes import run_scenes
from envs_jax.frozen_lake import oracle
from envs_jax.splits import Split

LAKE = Panel("lakes", "FrozenLake", {}, 6, "", "", levels=48, seed=3)


def records(folder):
    return [read_record(record_path(folder, number)) for number in recorded_iterations(folder)]


def assert_without_numbers(record):
    assert np.isnan([record.logprob, record.learner_logprob, record.entropy]).all()
    assert not record.trained.any()
    assert not record.advantage.any()


def assert_boards(folder, record):
    drawn = run_scenes(folder, read_config(folder), record)
    assert [len(scenes) for scenes in drawn] == (1 + (record.actions >= 0).sum(axis=(1, 2))).tolist()
    return drawn


@pytest.fixture(scope="module")
def lakes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripted") / "lakes"
    return folder, evaluate_scripted("FrozenLake", "random", items="3-6,2", plays=2, turns=7, record=folder)


def test_what_is_recorded_is_the_result(lakes):
    folder, result = lakes
    assert result == evaluate_scripted("FrozenLake", "random", items="3-6,2", plays=2, turns=7)
    both = records(folder)
    success = np.stack([record.success.any(axis=1) for record in both], axis=1)
    np.testing.assert_array_equal(success, result["outcomes"]["samples"])
    assert np.mean([record.num_turns for record in both]) == result["mean_turns"]
    for number, record in enumerate(both):
        assert_without_numbers(record)
        assert record.header.evaluation.policy == "random"
        assert set(record.member.tolist()) == {number}
    np.testing.assert_array_equal(both[0].state_hash[:, 0], both[1].state_hash[:, 0])


def test_boards_and_actions_of_items(lakes):
    folder, _ = lakes
    _, drawn = (assert_boards(folder, record) for record in records(folder))
    for row, episode in enumerate(read_episodes(folder, 2)):
        instance = get_service("FrozenLake").make(False)
        assert episode.turns[0].message == instance.reset((3, 4, 5, 6, 2)[row]).observation
        shown = 1
        for number, turn in enumerate(episode.turns):
            action = turn.response.removeprefix("Action:").strip()
            answer = instance.step(action)
            names = action.split("||")[: len(instance.executed)]
            assert [scene["action"] for scene in drawn[row][shown : shown + len(names)]] == names
            shown += len(names)
            after = episode.turns[number + 1].message if number + 1 < len(episode.turns) else episode.unanswered
            assert after in (answer.observation, None)
            assert turn.extra["reward"] == answer.reward
        assert (episode.unanswered is None) == (answer.done and not answer.info["truncated"])


def test_what_a_server_played_and_other_levels_have_no_boards(lakes, tmp_path):
    folder, _ = lakes
    config, (record, _) = read_config(folder), records(folder)
    remote = config.replace(env=config.env.replace(url="http://127.0.0.1:1"))
    assert run_scenes(folder, remote, record) is None
    moved = config.replace(tasks=(config.tasks[0].replace(held_out="13-17"),))
    assert run_scenes(tmp_path, moved, record) == [[]] * 5


def test_page_and_formats_show_no_invented_numbers(lakes):
    folder, _ = lakes
    entry, blocks = RunData(folder).refresh()
    assert (entry["policy"], entry["recorded"], entry["replay"]) == ("random", "2 plays", "")
    assert "has no log-probabilities" in entry["about"]
    assert entry["actions"] == {"FrozenLake": ["Left", "Down", "Right", "Up"]}
    _, columns = unpack(blocks[1])
    for name in ("logprob", "entropy", "gap"):
        assert np.isnan(columns[f"{name}_table"][columns[name]]).all()
    source = read_episodes(folder, 1)
    made = as_atif(source, next(iter(source)), "1.7")
    assert made["agent"]["model_name"] == "scripted policy random"
    assert made["agent"]["extra"]["temperature"] is None
    assert not any("metrics" in step for step in made["steps"])
    assert "of the scripted policy random" in str(refusal("replay", folder, "--iteration", "1"))


def test_conversations_of_a_service(tmp_path):
    for policy, action in (("oracle", None), ("constant", "go nowhere"), ("null", None)):
        folder = tmp_path / policy
        result = evaluate_scripted("maze", policy, action=action, items="0,7", turns=30, record=folder)
        (record,) = records(folder)
        np.testing.assert_array_equal(record.success.any(axis=1)[:, None], result["outcomes"]["samples"])
        assert not record.overflow.any()
        assert run_scenes(folder, read_config(folder), record) is None
        for item, episode in zip((0, 7), read_episodes(folder)):
            instance = get_service("maze").make(False)
            assert episode.system == get_service("maze").instruction
            shown = [instance.reset(item).observation]
            for turn in episode.turns:
                shown.append(instance.step(turn.response.removeprefix("Action:").strip()).observation)
            assert [turn.message for turn in episode.turns] == shown[:-1]
            ended = (None, None) if policy == "oracle" else (shown[-1], "turns")
            assert (episode.unanswered, episode.truncation) == ended
            assert policy != "constant" or {turn.response for turn in episode.turns} == {"Action: go nowhere"}


def test_levels_of_a_panel(tmp_path, monkeypatch):
    plays = scripted_recording.PanelPlays(LAKE)
    monkeypatch.setattr(scripted_recording, "PanelPlays", lambda panel: plays)
    success = {}
    for policy in ("random", "oracle", "null"):
        folder = tmp_path / policy
        mean_turns = scripted_recording.play_levels(folder, policy, LAKE, 5, lambda line: None)
        (record,) = records(folder)
        assert mean_turns == record.num_turns.mean()
        assert_without_numbers(record)
        evaluation = record.header.evaluation
        assert (evaluation.split, evaluation.seed, evaluation.panel) == (int(Split.TEST), 3, "lakes")
        assert_boards(folder, record)
        success[policy] = record.success.any(axis=1).mean()
    assert not (record.actions >= 0).any()
    assert record.format_error.all()
    expected = oracle.optimal_success(panel_levels(LAKE), 6, 1 / 3).mean()  # the environment's default rate
    assert abs(success["oracle"] - expected) < 4 * np.sqrt(0.25 / len(LAKE))
    assert success["null"] == 0 < success["random"] < expected


def test_a_panel_with_one_action(tmp_path):
    result = evaluate_on_panel("oracle", "bandit-v1", record=tmp_path / "new")
    (record,) = records(tmp_path / "new")
    assert record.success.all(axis=1).tolist() == [True] * 64
    assert result["outcomes"]["samples"] == [[1.0]] * 64
    assert (record.header.evaluation.panel, result["mean_turns"]) == ("bandit-v1", 1.0)
