"""Recorded rollouts that are played again, and a run that records nothing."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import tiny_run

from agentrl_jax.runs.rollout_records import read_record, record_path, recorded_iterations, write_record


def test_a_run_that_records_nothing_learns_the_same(finished, tmp_path):
    code, _, err = tiny_run.command(
        *("train", finished.file, "--run_dir", str(tmp_path / "run"), "--train.trajectories_every", "0")
    )
    assert (code, err) == (0, "")
    assert tiny_run.metrics(tmp_path / "run") == tiny_run.metrics(finished.folder)
    assert recorded_iterations(tmp_path / "run") == []
    code, _, err = tiny_run.command("replay", str(tmp_path / "run"), "--iteration", "1")
    assert code == 2
    assert "not recorded" in err
    assert "train.trajectories_every above 0" in err


def test_a_row_is_played_again_bit_for_bit_from_a_store(finished, object_store):
    place = "s3://bucket/runs/tiny"
    object_store.put(str(finished.folder), place, recursive=True)
    code, out, err = tiny_run.command("replay", place, "--iteration", "4", "--row", "2", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["different"], found["equal_rows"], found["start"]) == ([], 3, "the checkpoint of step 5")


def test_a_row_that_was_changed_is_named(finished, tmp_path):
    record = read_record(record_path(finished.folder, 4))
    run = shutil.copytree(finished.folder, tmp_path / "run")
    tokens, logprob = record.tokens.copy(), record.logprob.copy()
    tokens[1, 0, 0] += 1
    logprob[1, 0, 0] = np.nextafter(logprob[1, 0, 0], np.float32(1))
    write_record(run, dataclasses.replace(record, tokens=tokens, logprob=logprob))
    shutil.rmtree(run / "checkpoints" / "5")  # it starts with imitation
    code, out, err = tiny_run.command("replay", str(run), "--iteration", "4", "--row", "1")
    assert code == 1
    assert "not in tokens, logprob; 2 of 3 recorded rows are equal" in out
    assert "from the start of the run" in err
    code, _, err = tiny_run.command("replay", str(run), "--iteration", "3")
    assert code == 0
    assert "iteration 2/3 " in err  # not of all iterations of the run


@pytest.mark.parametrize(
    ("words", "refusal"),
    [(("--iteration", "2"), "recorded are (last) 3, 4"), (("--iteration", "4", "--row", "3"), "expected 0 to 2")],
)
def test_what_was_not_recorded_is_refused(finished, words, refusal):
    code, _, err = tiny_run.command("replay", str(finished.folder), *words)
    assert code == 2
    assert refusal in err
