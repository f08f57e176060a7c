"""`agentrl scaling --attempts ... --record`: what is recorded is what was played, with the attempt of every turn."""

import json

import numpy as np
import pytest
import tiny_run

from agentrl_jax.formats.episodes import read_episodes
from agentrl_jax.runs.rollout_records import read_record, record_path, recorded_iterations, write_record
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.text.styles import FEEDBACK
from agentrl_jax.viewer.columns import unpack
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.scenes import run_scenes

LEVELS, ATTEMPTS, TURNS = 8, 3, 2


@pytest.fixture(scope="module")
def retried(finished, tmp_path_factory):
    """Folder, printed result and records (greedy and sampled) of an evaluation with retries."""
    home = tmp_path_factory.mktemp("retried")
    words = ("--env", "FrozenLake", "--episodes", str(LEVELS), "--attempts", f"1,{ATTEMPTS}", "--json")
    folders = ("--record", str(home / "new"), "--out", str(home))
    code, out, err = tiny_run.command("scaling", str(finished.folder), *words, *folders)
    assert code == 0, err
    assert recorded_iterations(home / "new") == [1, 2]
    return home / "new", json.loads(out), [read_record(record_path(home / "new", number)) for number in (1, 2)]


def played(record):
    return np.arange(record.reward.shape[1]) < record.num_turns[:, None]


def test_records_are_the_episodes_of_the_result(retried):
    _, result, (greedy, sampled) = retried
    point = result["axes"]["attempts"][-1]
    assert point["attempts"] == ATTEMPTS
    for record, name in ((greedy, "retry_greedy"), (sampled, "retry")):
        assert record.success.any(axis=1).mean() == pytest.approx(point[name]["mean"])
        assert (record.header.horizon, record.header.evaluation.attempts) == (ATTEMPTS * TURNS, ATTEMPTS)
    assert sampled.num_turns.mean() == pytest.approx(point["retry_turns"]["mean"])
    assert sampled.length.sum(axis=1).mean() == pytest.approx(point["retry_tokens"]["mean"])


def test_attempts_begin_after_a_failure_on_the_same_level(retried):
    for record in retried[2]:
        steps = np.diff(record.attempt, axis=1)[played(record)[:, 1:]]
        assert set(steps.tolist()) == {0, 1}
        assert record.attempt.max() == ATTEMPTS - 1
        for row in range(LEVELS):
            begins = [0, *(1 + np.flatnonzero(np.diff(record.attempt[row, : record.num_turns[row]])))]
            assert len({record.state_hash[row, turn].tobytes() for turn in begins}) == 1
            assert not record.success[row, : begins[-1]].any()


def test_boards_begin_again(retried):
    folder, _, records = retried
    config = read_config(folder)
    for record in records:
        drawn = run_scenes(folder, config, record)
        again = [int(record.attempt[row, : record.num_turns[row]].max()) for row in range(LEVELS)]
        executed = (record.actions >= 0).sum(axis=(1, 2))
        assert [len(scenes) for scenes in drawn] == (1 + executed + again).tolist()
        for row, scenes in enumerate(drawn):
            starts = [scene for scene in scenes if str(scene["action"]).startswith("the start of attempt")]
            names = [f"the start of attempt {number + 2}" for number in range(again[row])]
            assert [scene["action"] for scene in starts] == names
            assert all(scene["cells"] == scenes[0]["cells"] for scene in starts)
            first = [1 + np.flatnonzero(np.diff(record.attempt[row, : record.num_turns[row]]))][0]
            assert [scene["turn"] for scene in starts] == (first - 1).tolist()


def test_page_and_formats_know_the_attempt(retried):
    folder, _, (_, sampled) = retried
    entry, (_, _, block) = RunData(folder).refresh()
    assert f"with up to {ATTEMPTS} attempts at a level." in entry["about"]
    assert entry["recorded"] == "greedy play and 1 sample"
    _, columns = unpack(block)
    np.testing.assert_array_equal(columns["attempt"], sampled.attempt[played(sampled)])
    for row, episode in enumerate(read_episodes(folder, 2)):
        numbers = [turn.extra["attempt"] for turn in episode.turns]
        assert numbers == sampled.attempt[row, : sampled.num_turns[row]].tolist()
        for before, number, turn in zip([0, *numbers], numbers, episode.turns):
            assert (FEEDBACK.strip() in turn.message) == (number > before)


def test_files_of_before_have_one_attempt(retried, tmp_path):
    _, _, (greedy, _) = retried
    path = write_record(tmp_path, greedy)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files if name != "attempt"}
    np.savez_compressed(path, **arrays)
    assert not read_record(path).attempt.any()


def test_record_needs_attempts(finished, tmp_path):
    words = ("--turns", "2", "--record", str(tmp_path / "new"))
    code, out, err = tiny_run.command("scaling", str(finished.folder), *words)
    assert (code, out) == (2, "")
    assert "the conversations of --attempts, which is missing" in err
    assert not (tmp_path / "new").exists()
