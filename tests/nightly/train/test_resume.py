"""Runs whose process is killed end bit for bit like a run that was not killed."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
import tiny_run
from paths import TESTS
from rich.console import Console

from agentrl_jax.config import load_config
from agentrl_jax.evaluate.eval_set import EvalSet
from agentrl_jax.runs import checkpoint
from agentrl_jax.stopping import Stopped
from agentrl_jax.train import run as train_run

SCRIPT = str(TESTS / "helpers" / "killing_run.py")


@pytest.fixture
def lives(finished, tmp_path):
    """Function (moment, nth) that runs the command of the finished run in another folder; returns its exit code."""
    environment = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), **os.environ}

    def live(moment, nth=0):
        words = [sys.executable, SCRIPT, moment, str(nth), "train", finished.file, "--run_dir", str(tmp_path / "run")]
        with open(tmp_path / "output", "a") as output:
            done = subprocess.run(words, env=environment, stdout=output, stderr=output, timeout=300, check=False)
        return done.returncode

    return live


def rows(run):
    return [row["step"] for row in tiny_run.metrics(run)]


def test_killed_again_and_again(finished, lives, tmp_path):
    """In an update after a row without a checkpoint, and while a checkpoint is saved."""
    run = tmp_path / "run"
    assert lives("update", 4) == -signal.SIGKILL
    assert (tiny_run.checkpoints(run), rows(run)) == ([3, 5], [1, 2, 3, 4, 5, 6])
    assert lives("publish", 1) == -signal.SIGKILL
    assert (tiny_run.checkpoints(run), rows(run)) == ([3, 5], [1, 2, 3, 4, 5, 6, 7])
    assert any("tmp" in entry.name for entry in (run / "checkpoints").iterdir())
    assert lives("never") == 0
    assert (tmp_path / "output").read_text().count("going on from the checkpoint of step 5") == 2
    tiny_run.assert_same(run, finished.folder)


@pytest.mark.parametrize(
    ("moment", "nth"),
    [
        ("imitation", 1),
        ("evaluation", 1),
        ("write", 1),
        ("publish", 2),
        ("write", 3),
        ("rollout", 1),
        ("rollout", 4),
        ("evaluation", 9),
        ("digests", 2),
        ("digests", 4),
        ("remove", 1),
    ],
)
def test_killed_once(finished, lives, tmp_path, moment, nth):
    assert lives(moment, nth) == -signal.SIGKILL
    assert lives("never") == 0
    tiny_run.assert_same(tmp_path / "run", finished.folder)


def test_sigterm_in_the_evaluation_before_learning(finished, tmp_path, monkeypatch):
    """What imitation has learned is saved; the same command evaluates it from the beginning."""
    run, played, play = tmp_path / "run", [], EvalSet.play

    def noted(eval_set, *words, **options):
        played.append(1)
        return play(eval_set, *words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(EvalSet, "play", noted)
        patch.setattr(train_run, "deferring", lambda: contextlib.nullcontext(lambda: bool(played)))
        with pytest.raises(Stopped):
            train_run.train(load_config(finished.file, ["--run_dir", str(run)]), Console(quiet=True))
    assert (len(played), tiny_run.checkpoints(run)) == (1, [2, 3])
    code, _, err = tiny_run.command("train", finished.file, "--run_dir", str(run))
    assert code == 0, err
    tiny_run.assert_same(run, finished.folder)


def test_no_iteration_is_logged_before_the_state_at_the_start_of_learning_is_saved(finished, tmp_path, monkeypatch):
    """Without that checkpoint its rows would be lost, so that the folder could not be used any more."""

    def slow(folder, write=checkpoint.write_digests):
        time.sleep(2.0)
        write(folder)

    def iterate(run, state):
        raise KeyError(*run.progress.checkpoints.steps())

    monkeypatch.setattr(checkpoint, "write_digests", slow)
    monkeypatch.setattr(train_run.Run, "_iterate", iterate)
    words = ["--run_dir", str(tmp_path / "run"), "--imitation.levels", "0", "--imitation.steps", "0"]
    with pytest.raises(KeyError) as found:
        train_run.train(load_config(finished.file, words), Console(quiet=True))
    assert found.value.args == (0,)


def test_sigterm_in_the_last_evaluation(finished, tmp_path, monkeypatch):
    """Everything is saved already, so that the run ends after one dispatch; the same command evaluates."""
    again, played, play = tmp_path / "run", [], EvalSet.play
    shutil.copytree(finished.folder, again)
    (again / "summary.json").unlink()

    def noted(eval_set, *words, **options):
        played.append(1)
        return play(eval_set, *words, **options)

    with monkeypatch.context() as patch:
        patch.setattr(EvalSet, "play", noted)
        patch.setattr(train_run, "deferring", lambda: contextlib.nullcontext(lambda: True))
        with pytest.raises(Stopped):
            train_run.train(load_config(finished.file, ["--run_dir", str(again)]), Console(quiet=True))
    assert len(played) == 1
    assert not (again / "summary.json").exists()
    code, _, err = tiny_run.command("train", finished.file, "--run_dir", str(again))
    assert code == 0, err
    tiny_run.assert_same(again, finished.folder)


def test_a_run_that_ended_goes_on_for_longer_like_one_that_never_did(finished, tmp_path):
    run = str(tmp_path / "run")
    for iterations in ("2", "4"):
        words = ("--run_dir", run, "--train.iterations", iterations, "--train.trajectories_every", "4")
        code, _, err = tiny_run.command("train", finished.file, *words)
        assert (code, err) == (0, "")
        assert tiny_run.summary(tmp_path / "run")["iterations"] == int(iterations)
    assert tiny_run.metrics(tmp_path / "run") == tiny_run.metrics(finished.folder)
    assert tiny_run.checkpoint(tmp_path / "run", 7) == tiny_run.checkpoint(finished.folder, 7)
    assert tiny_run.summary(tmp_path / "run") == tiny_run.summary(finished.folder)


def test_a_run_that_was_evaluated_on_other_levels_does_not_go_on(finished, tmp_path):
    """As by a version that draws others: its end could not be compared with its start."""
    again = tmp_path / "run"
    shutil.copytree(finished.folder, again)
    rows = [json.loads(row) for row in (again / "levels.jsonl").read_text().splitlines()]
    (tested,) = (row for row in rows if row["stage"] == "test")
    tested["levels"][0] = "0" * 16
    (again / "levels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, err = tiny_run.command("train", finished.file, "--run_dir", str(again), "--train.iterations", "5")
    assert code == 2
    assert "was evaluated at its start on other levels than those of this version" in err
