"""Boards of recorded evaluations, and levels of a panel."""

import dataclasses

import numpy as np
import pytest
import tiny_run
from recording_folders import LEVELS, WORDS, assert_boards, assert_without_numbers, recorded, records

from agentrl_jax.evaluate import scripted_recording
from agentrl_jax.evaluate.panels import Panel, panel_levels
from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.formats.episodes import read_episodes
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.services.catalog import get_service
from agentrl_jax.viewer.columns import unpack
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.scenes import run_scenes
from envs_jax.frozen_lake import oracle
from envs_jax.splits import Split


@pytest.fixture(scope="module")
def lakes(finished, tmp_path_factory):
    """An evaluation of the last checkpoint on generated levels: (folder, result, records)."""
    folder = tmp_path_factory.mktemp("recorded") / "last"
    return folder, *recorded(finished.folder, folder, *WORDS)


def test_boards_are_computed_again(finished, lakes, tmp_path):
    """On generated levels, and on those of a file."""
    (tmp_path / "levels.txt").write_text(tiny_run.LEVELS)
    _, of_file = recorded(finished.folder, tmp_path / "new", "--levels", tmp_path / "levels.txt")
    assert {tuple(file.level) for file in of_file.values()} == {(0, 1)}
    folder, _, files_of_labels = lakes
    for where, files in ((folder, files_of_labels), (tmp_path / "new", of_file)):
        for file in files.values():
            assert_boards(where, file)
    file = files_of_labels["sample 1"]
    other = dataclasses.replace(file.header.evaluation, seed=file.header.evaluation.seed + 1)
    moved = dataclasses.replace(file, header=dataclasses.replace(file.header, evaluation=other))
    assert run_scenes(folder, read_config(folder), moved) == [[]] * LEVELS


LAKE = Panel("lakes", "FrozenLake", {}, 6, "", "", levels=48, seed=3)


def test_levels_of_a_panel(tmp_path, monkeypatch):
    plays = scripted_recording.PanelPlays(LAKE)
    monkeypatch.setattr(scripted_recording, "PanelPlays", lambda panel: plays)
    success = {}
    for policy in ("random", "oracle"):
        folder = tmp_path / policy
        mean_turns = scripted_recording.play_levels(folder, policy, LAKE, 5, lambda line: None)
        (record,) = records(folder)
        assert mean_turns == record.num_turns.mean()
        assert_without_numbers(record)
        evaluation = record.header.evaluation
        assert (evaluation.split, evaluation.seed, evaluation.panel) == (int(Split.TEST), 3, "lakes")
        assert_boards(folder, record)
        success[policy] = record.success.any(axis=1).mean()
    expected = oracle.optimal_success(panel_levels(LAKE), 6, 1 / 3).mean()  # the environment's default rate
    assert abs(success["oracle"] - expected) < 4 * np.sqrt(0.25 / len(LAKE))
    assert 0 < success["random"] < expected


def test_two_evaluations_are_on_the_same_levels_of_the_page(finished, lakes, tmp_path):
    earlier = tmp_path / "earlier"
    recorded(finished.folder, earlier, *WORDS, "--checkpoint", "5")
    shown = [RunData(folder).refresh() for folder in (lakes[0], earlier)]
    for (entry, _), iteration in zip(shown, (4, 2)):
        assert (entry["stage"], entry["replay"], entry["recorded"]) == ("evaluation", "", "greedy play and 2 samples")
        assert [info["label"] for info in entry["iterations"]] == ["greedy", "sample 1", "sample 2"]
        assert entry["about"].endswith(f", iteration {iteration}.")
    first, second = (unpack(blocks[0])[1] for _, blocks in shown)
    for name in ("iteration", "task", "group", "level_high", "level_low"):
        np.testing.assert_array_equal(first[name], second[name])
    assert len(set(first["level_low"].tolist())) == LEVELS
    (_, greedy), (_, sample), _ = map(unpack, shown[0][1][1:])
    assert np.isnan(greedy["gap_table"]).all()  # temperatures differ
    assert np.isfinite(sample["gap_table"][sample["gap"]]).all()


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
