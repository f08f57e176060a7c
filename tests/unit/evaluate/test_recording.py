"""`eval --record`: what it records is what a run or a scripted policy played, and viewer and formats read it."""

import dataclasses

import numpy as np
import pytest
import tiny_run
from evaluating import refusal, result_of

from agentrl_jax.errors import UserError
from agentrl_jax.evaluate import eval_set, scripted_recording
from agentrl_jax.evaluate.panels import OtherLevels, Panel, panel_levels
from agentrl_jax.evaluate.recording import record_folder
from agentrl_jax.evaluate.scripted import evaluate_scripted
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

LEVELS, SAMPLES = 8, 2
WORDS = ("--env", "FrozenLake", "--episodes", str(LEVELS), "--samples", str(SAMPLES))


def records(folder):
    return [read_record(record_path(folder, number)) for number in recorded_iterations(folder)]


def assert_boards(folder, record):
    drawn = run_scenes(folder, read_config(folder), record)
    assert [len(scenes) for scenes in drawn] == (1 + (record.actions >= 0).sum(axis=(1, 2))).tolist()
    return drawn


def recorded(run, folder, *words):
    result = result_of("eval", run, *words, "--record", folder)
    return result, {file.header.label: file for file in records(folder)}


def assert_without_numbers(record):
    assert np.isnan([record.logprob, record.learner_logprob, record.entropy]).all()
    assert not record.trained.any()
    assert not record.advantage.any()


@pytest.fixture(scope="module")
def lakes(finished, tmp_path_factory):
    """An evaluation of the last checkpoint on generated levels: (folder, result, records)."""
    folder = tmp_path_factory.mktemp("recorded") / "last"
    return folder, *recorded(finished.folder, folder, *WORDS)


def test_records_are_the_episodes_of_the_result(finished, lakes):
    _, result, files = lakes
    assert list(files) == ["greedy", "sample 1", "sample 2"]
    success = {label: file.success.any(axis=1) for label, file in files.items()}
    np.testing.assert_array_equal(success["greedy"], result["outcomes"]["success_greedy"])
    samples = [success[f"sample {number}"] for number in (1, 2)]
    np.testing.assert_array_equal(np.stack(samples, axis=1), result["outcomes"]["samples"])
    for number, file in enumerate(files.values()):
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
        played = np.arange(file.reward.shape[1]) < file.num_turns[:, None]
        tokens = played[..., None] & (np.arange(file.tokens.shape[2]) < file.length[..., None])
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

    # What was played of other levels than the panel's is deleted.
    def record_and_raise(folder, error):
        with record_folder(folder, read_config(lakes[0]), groups=4):
            record_path(folder, 1).parent.mkdir()
            record_path(folder, 1).touch()
            raise error

    for error, kept in ((UserError("the service has gone"), True), (OtherLevels("other text"), False)):
        with pytest.raises(type(error)):
            record_and_raise(tmp_path / str(kept), error)
        assert (tmp_path / str(kept)).exists() == kept


@pytest.fixture(scope="module")
def scripted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripted") / "lakes"
    return folder, evaluate_scripted("FrozenLake", "random", items="3-6,2", plays=2, turns=7, record=folder)


def test_a_scripted_record_is_the_result_without_invented_numbers(scripted):
    folder, result = scripted
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
    # The page and formats of other tools show no invented numbers.
    entry, blocks = RunData(folder).refresh()
    assert (entry["policy"], entry["recorded"], entry["replay"]) == ("random", "2 plays", "")
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


def test_boards_and_actions_of_items(scripted, tmp_path):
    folder, _ = scripted
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
    # What a server played, and other levels, have no boards.
    config, (record, _) = read_config(folder), records(folder)
    remote = config.replace(env=config.env.replace(url="http://127.0.0.1:1"))
    assert run_scenes(folder, remote, record) is None
    moved = config.replace(tasks=(config.tasks[0].replace(held_out="13-17"),))
    assert run_scenes(tmp_path, moved, record) == [[]] * 5


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
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


@pytest.mark.nightly
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
