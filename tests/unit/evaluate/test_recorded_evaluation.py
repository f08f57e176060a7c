"""`agentrl eval --record`: what it records is what was played, and viewer and formats read it."""

import dataclasses
import logging

import numpy as np
import pytest
import tiny_run
from evaluating import refusal, result_of

from agentrl_jax.errors import UserError
from agentrl_jax.evaluate import eval_set
from agentrl_jax.evaluate.panels import OtherLevels
from agentrl_jax.evaluate.recording import record_folder
from agentrl_jax.runs.rollout_records import RolloutRecord, read_record, record_path, recorded_iterations
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.viewer.columns import unpack
from agentrl_jax.viewer.data import RunData
from agentrl_jax.viewer.scenes import run_scenes
from envs_jax.splits import Split

LEVELS, SAMPLES = 8, 2
WORDS = ("--env", "FrozenLake", "--episodes", str(LEVELS), "--samples", str(SAMPLES))


def record(run, folder, *words):
    result = result_of("eval", run, *words, "--record", folder)
    files = [read_record(record_path(folder, number)) for number in recorded_iterations(folder)]
    return result, {file.header.label: file for file in files}


@pytest.fixture(scope="module")
def lakes(finished, tmp_path_factory):
    """An evaluation of the last checkpoint on generated levels: (folder, result, records)."""
    folder = tmp_path_factory.mktemp("recorded") / "last"
    return folder, *record(finished.folder, folder, *WORDS)


def sampled(record: RolloutRecord):
    played = np.arange(record.reward.shape[1]) < record.num_turns[:, None]
    return played[..., None] & (np.arange(record.tokens.shape[2]) < record.length[..., None])


def test_records_are_the_episodes_of_the_result(finished, lakes):
    _, result, records = lakes
    assert list(records) == ["greedy", "sample 1", "sample 2"]
    success = {label: record.success.any(axis=1) for label, record in records.items()}
    np.testing.assert_array_equal(success["greedy"], result["outcomes"]["success_greedy"])
    samples = [success[f"sample {number}"] for number in (1, 2)]
    np.testing.assert_array_equal(np.stack(samples, axis=1), result["outcomes"]["samples"])
    for number, file in enumerate(records.values()):
        header, sample = file.header, None if number == 0 else number - 1
        assert (header.iteration, header.step) == (number + 1, 7)
        assert (header.tasks, header.episodes) == (("FrozenLake",), LEVELS)
        assert header.temperature == (0 if sample is None else result["temperature"])
        known = {"sample": sample, "seed": result["seed"], "split": int(Split.TEST), "run": str(finished.folder)}
        assert known.items() <= dataclasses.asdict(header.evaluation).items()
        assert (header.evaluation.iteration, header.evaluation.panel, header.evaluation.attempts) == (4, None, 1)
        assert file.group.tolist() == list(range(LEVELS))
        assert set(file.member.tolist()) == {sample or 0}
        assert not file.trained.any()


def test_the_learner_scores_the_tokens(lakes):
    """It computes what the rollout sampled from; greedy tokens, which are certain, it scores at temperature 1."""
    for label, file in lakes[2].items():
        tokens = sampled(file)
        assert tokens.any()
        if label == "greedy":
            assert not file.logprob.any()
            # The entropy of a distribution is at least -log of its largest probability, which is that of this token.
            assert (-file.learner_logprob[tokens] > 0).all()
            assert (-file.learner_logprob[tokens] <= file.entropy[tokens] + 1e-5).all()
        else:
            np.testing.assert_allclose(file.learner_logprob[tokens], file.logprob[tokens], atol=2e-4)
        assert (file.entropy[tokens] > 0).all()
        assert not file.entropy[~tokens].any()


def test_boards_are_computed_again(finished, lakes, tmp_path, caplog):
    """On generated levels, and on those of a file."""
    (tmp_path / "levels.txt").write_text(tiny_run.LEVELS)
    _, of_file = record(finished.folder, tmp_path / "new", "--levels", tmp_path / "levels.txt")
    assert {tuple(file.level) for file in of_file.values()} == {(0, 1)}
    folder, _, records = lakes
    for where, files in ((folder, records), (tmp_path / "new", of_file)):
        for file in files.values():
            drawn = run_scenes(where, read_config(where), file)
            assert [len(scenes) for scenes in drawn] == (1 + (file.actions >= 0).sum(axis=(1, 2))).tolist()
    file = records["sample 1"]
    other = dataclasses.replace(file.header.evaluation, seed=file.header.evaluation.seed + 1)
    moved = dataclasses.replace(file, header=dataclasses.replace(file.header, evaluation=other))
    with caplog.at_level(logging.WARNING):
        assert run_scenes(folder, read_config(folder), moved) == [[]] * LEVELS
    assert f"sample 1: {LEVELS} of {LEVELS} episodes have no boards" in caplog.text


def test_two_evaluations_are_on_the_same_levels_of_the_page(finished, lakes, tmp_path):
    earlier = tmp_path / "earlier"
    record(finished.folder, earlier, *WORDS, "--checkpoint", "5")
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


def test_samples_of_a_level_are_epochs_in_inspect(lakes, tmp_path):
    logs = pytest.importorskip("inspect_ai.log")
    folder, result, _ = lakes
    tiny_run.done("export", str(folder), str(tmp_path / "logs"), "--trajectories", "inspect")
    greedy, both = (logs.read_eval_log(str(file)) for file in sorted((tmp_path / "logs").iterdir()))
    for log, epochs, outcome in ((greedy, 1, "success_greedy"), (both, SAMPLES, "success")):
        assert (log.eval.config.epochs, log.eval.dataset.samples) == (epochs, LEVELS)
        assert log.eval.model_generate_config.temperature == (0 if log is greedy else result["temperature"])
        assert log.eval.metadata["run"] == read_record(record_path(folder, 1)).header.evaluation.run
        assert len({(sample.id, sample.epoch) for sample in log.samples}) == LEVELS * epochs
        (score,) = [score for score in log.results.scores if score.name == "success"]
        assert score.metrics["accuracy"].value == pytest.approx(result[outcome]["mean"])


def test_what_is_refused(finished, lakes, tmp_path, monkeypatch):
    folder, run = str(lakes[0]), str(finished.folder)
    before = {file.name for file in lakes[0].rglob("*")}
    assert refusal("eval", run, "--record", folder).key == folder
    assert f"holds an evaluation of {run}" in str(refusal("replay", folder, "--iteration", "1"))
    assert "holds an evaluation that" in str(refusal("train", finished.file, "--run_dir", folder))
    assert {file.name for file in lakes[0].rglob("*")} - {".lock"} == before
    assert refusal("eval", run, *WORDS, "--record", lakes[0] / "config.yaml" / "new").key == "--record"
    play = eval_set.EvalSet.play

    def fail(self, params, episodes, temperature, sample=0):
        if (temperature > 0, sample) == failing:
            raise UserError("the service has gone")
        return play(self, params, episodes, temperature, sample)

    monkeypatch.setattr(eval_set.EvalSet, "play", fail)
    failing, words = (False, 0), ("eval", run, *WORDS, "--record", str(tmp_path / "new"))
    assert "the service has gone" in str(refusal(*words))
    assert not (tmp_path / "new").exists(), "nothing was recorded"
    failing = (True, 1)
    assert "the service has gone" in str(refusal(*words))
    assert recorded_iterations(tmp_path / "new") == [1, 2], "greedy play and the first sample are finished"


def test_what_was_played_of_other_levels_than_the_panels_is_deleted(lakes, tmp_path):
    def record_and_raise(folder, error):
        with record_folder(folder, read_config(lakes[0]), groups=4):
            record_path(folder, 1).parent.mkdir()
            record_path(folder, 1).touch()
            raise error

    for error, kept in ((UserError("the service has gone"), True), (OtherLevels("other text"), False)):
        with pytest.raises(type(error)):
            record_and_raise(tmp_path / str(kept), error)
        assert (tmp_path / str(kept)).exists() == kept
