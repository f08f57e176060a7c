"""Runs that are killed, stopped, continued or replayed give the bits of a run that was not."""

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import tiny_run
from paths import TESTS
from processes import aborted
from rich.console import Console

from agentrl_jax.config import load_config
from agentrl_jax.evaluate.eval_set import EvalSet
from agentrl_jax.runs import checkpoint
from agentrl_jax.runs.rollout_records import read_record, record_path, recorded_iterations, write_record
from agentrl_jax.stopping import Stopped
from agentrl_jax.train import run as train_run
from agentrl_jax.train.reinforcement import Reinforcement

SCRIPT = str(TESTS / "helpers" / "killing_run.py")

MOMENTS = "imitation 1, evaluation 1, write 1, publish 2, write 3, rollout 1, rollout 4, evaluation 9, digests 2"


@pytest.mark.parametrize("when", [*MOMENTS.split(", "), "update 4", "digests 4", "remove 1", "update 4 publish 1"])
def test_killed_once_or_again(finished, tmp_path, when):
    run, words = tmp_path / "run", [*when.split(), "never", "0"]
    environment = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), **os.environ}
    for moment, nth in zip(words[::2], words[1::2]):
        command = [sys.executable, SCRIPT, moment, nth, "train", finished.file, "--run_dir", str(run)]
        done = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=False)
        assert done.returncode == (0 if moment == "never" else -signal.SIGKILL), done.stderr
    tiny_run.assert_same(run, finished.folder)


@pytest.mark.parametrize("last", [False, True])
def test_sigterm_in_an_evaluation(last, finished, tmp_path, monkeypatch):
    """Before learning, what imitation has learned is saved; at the end all is saved, and it ends after one dispatch."""
    run, played, play = tmp_path / "run", [], EvalSet.play
    if last:
        shutil.copytree(finished.folder, run)
        (run / "summary.json").unlink()

    def noted(eval_set, *words, **options):
        played.append(1)
        return play(eval_set, *words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(EvalSet, "play", noted)
        patch.setattr(train_run, "deferring", lambda: contextlib.nullcontext(lambda: last or bool(played)))
        with pytest.raises(Stopped):
            train_run.train(load_config(finished.file, ["--run_dir", str(run)]), Console(quiet=True))
    assert (len(played), tiny_run.checkpoints(run)) == (1, [5, 7] if last else [2, 3])
    assert not (run / "summary.json").exists()
    tiny_run.trained(run, finished.file)
    tiny_run.assert_same(run, finished.folder)


def test_no_iteration_is_logged_before_the_state_at_the_start_of_learning_is_saved(finished, tmp_path, monkeypatch):
    """Without that checkpoint its rows would be lost, so that the folder could not be used any more."""

    def slow(folder, write=checkpoint.write_digests):
        time.sleep(2.0)
        write(folder)

    def iterate(stage, state):
        raise KeyError(*stage.progress.checkpoints.steps())

    monkeypatch.setattr(checkpoint, "write_digests", slow)
    monkeypatch.setattr(Reinforcement, "advance", iterate)
    words = ["--run_dir", str(tmp_path / "run"), "--imitation.levels", "0", "--imitation.steps", "0"]
    with pytest.raises(KeyError) as found:
        train_run.train(load_config(finished.file, words), Console(quiet=True))
    assert found.value.args == (0,)


def test_a_run_that_ended_goes_on_for_longer_like_one_that_never_did(finished, tmp_path):
    run = tmp_path / "run"
    for iterations in ("2", "4"):
        tiny_run.trained(run, finished.file, "--train.iterations", iterations, "--train.trajectories_every", "4")
        assert tiny_run.summary(run)["iterations"] == int(iterations)
    for read in (tiny_run.metrics, tiny_run.summary, lambda folder: tiny_run.checkpoint(folder, 7)):
        assert read(run) == read(finished.folder)


def test_a_run_that_was_evaluated_on_other_levels_does_not_go_on(finished, tmp_path):
    """As by a version that draws others: its end could not be compared with its start."""
    again = shutil.copytree(finished.folder, tmp_path / "run")
    rows = [json.loads(row) for row in (again / "levels.jsonl").read_text().splitlines()]
    (tested,) = (row for row in rows if row["stage"] == "test")
    tested["levels"][0] = "0" * 16
    (again / "levels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "other levels" in tiny_run.refused(again, finished.file, "--train.iterations", "5")


def test_a_run_that_records_nothing_learns_the_same(finished, tmp_path):
    tiny_run.trained(tmp_path / "run", finished.file, "--train.trajectories_every", "0")
    assert tiny_run.metrics(tmp_path / "run") == tiny_run.metrics(finished.folder)
    assert recorded_iterations(tmp_path / "run") == []
    assert "train.trajectories_every" in tiny_run.refusal("replay", str(tmp_path / "run"), "--iteration", "1")


def test_a_row_that_was_changed_is_named_and_what_was_not_recorded_is_refused(finished, tmp_path):
    record = read_record(record_path(finished.folder, 4))
    run = shutil.copytree(finished.folder, tmp_path / "run")
    tokens, logprob = record.tokens.copy(), record.logprob.copy()
    tokens[1, 0, 0] += 1
    logprob[1, 0, 0] = np.nextafter(logprob[1, 0, 0], np.float32(1))
    write_record(run, dataclasses.replace(record, tokens=tokens, logprob=logprob))
    shutil.rmtree(run / "checkpoints" / "5")  # it starts with imitation
    replay = ("replay", str(run), "--iteration")
    code, out, err = tiny_run.command(*replay, "4", "--row", "1")
    assert code == 1
    assert "not in tokens, logprob; 2 of 3 recorded rows are equal" in out
    assert "from the start of the run" in err
    code, _, err = tiny_run.command(*replay, "3")
    assert (code, "iteration 2/3 " in err) == (0, True)  # not of all iterations of the run
    assert "3, 4" in tiny_run.refusal(*replay, "2")
    assert "0 to 2" in tiny_run.refusal(*replay, "4", "--row", "3")


AGENTRL = [sys.executable, "-m", "agentrl_jax"]


@pytest.mark.parametrize("words", [("presets",), ("train", "absent.yaml"), ("play", "Bandit"), ("--help",)])
def test_no_command_needs_standard_input(words):
    done = subprocess.run(
        [*AGENTRL, *words], preexec_fn=lambda: os.close(0), capture_output=True, text=True, timeout=300, check=False
    )
    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 2)


def test_a_thread_that_aborts_while_the_interpreter_is_locked_ends_the_process():
    done = aborted("stuck")
    assert done.returncode == -signal.SIGABRT
    assert "sentence" not in done.stderr


DAGGER = """
tasks: [{env: SimpleSokoban, groups: 2}]
prompt: {max_turns: 3, max_actions_per_turn: 2, max_actions: 6, max_response_tokens: 6}
model: {layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16}
rollout: {group_size: 2}
algo: {preset: starpo_s, filter: {ratio: 0.5}, packing: true}
imitation: {plans: optimal, levels: 16, steps: 100, batch: 8, lr: 0.03, dagger_rounds: 2, dagger_levels: 12}
train: {iterations: 1, checkpoint_every: 1, keep: 9, validate_every: 0, validation_episodes: 8, trajectories_every: 0}
evaluation: {episodes: 8}
"""
"""Rounds before chunks 1 and 2 of 4, counted from 0."""


@pytest.fixture(scope="module")
def dagger(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dagger")
    file = tiny_run.write_config(folder, DAGGER)
    return tiny_run.Finished(file, folder / "run", tiny_run.trained(folder / "run", file))


def rounds(run):
    return [json.loads((run / "dagger" / f"{number}.json").read_text()) for number in (1, 2)]


@pytest.mark.parametrize("last", [1, 2])
def test_a_run_resumed_between_rounds_ends_like_one_that_was_not_stopped(dagger, tmp_path, last):
    """Also where the process ended after a round was written and before a step was taken with it."""
    assert "round 2 of 2: " in dagger.output
    again = shutil.copytree(dagger.folder, tmp_path / "run")
    for step in tiny_run.checkpoints(again)[last + 1 :]:
        shutil.rmtree(again / "checkpoints" / str(step))
    (again / "summary.json").unlink()
    # Without RL iterations, which a run does not give up for lack of their checkpoint.
    rows = (again / "metrics.jsonl").read_text().splitlines(keepends=True)
    (again / "metrics.jsonl").write_text("".join(rows[:4]))
    tiny_run.trained(again, dagger.file)
    for read in (tiny_run.metrics, tiny_run.summary, rounds):
        assert read(again) == read(dagger.folder)
    assert (again / "levels.jsonl").read_text() == (dagger.folder / "levels.jsonl").read_text()
