"""Recorded rollouts of a run: what the files hold, that they are bounded, refused if damaged, and played again."""

import dataclasses
import json
import shutil
import zipfile

import numpy as np
import pytest
import tiny_run

from agentrl_jax.errors import UserError
from agentrl_jax.runs import rollout_records
from agentrl_jax.runs.rollout_records import (
    delete_after,
    delete_oldest,
    read_record,
    record_path,
    recorded_iterations,
    write_record,
)
from agentrl_jax.runs.run_folder import read_config
from agentrl_jax.setup import build


@pytest.fixture(scope="module")
def record(finished):
    return read_record(record_path(finished.folder, 4))


def test_every_third_iteration_and_the_last_are_recorded(finished, record):
    assert recorded_iterations(finished.folder) == [3, 4]
    header = record.header
    assert (header.step, header.iteration, header.roll_backs, header.tasks) == (
        7,
        4,
        0,
        ("SimpleSokoban", "FrozenLake"),
    )
    assert (header.group_size, header.episodes, header.horizon, header.temperature) == (4, 16, 2, 1.0)
    assert (record.group.tolist(), record.member.tolist()) == ([0, 0, 0], [0, 1, 2])


def test_it_holds_the_tokens_of_the_text(finished, record):
    texts = [json.loads(line) for line in (finished.folder / "trajectories.jsonl").read_text().splitlines()][-3:]
    tokenizer = build.load_tokenizer(read_config(finished.folder).model, None)
    for row, text in enumerate(texts):
        assert record.num_turns[row] == len(text["turns"])
        assert record.returns[row] == pytest.approx(text["return"])
        for turn, shown in enumerate(text["turns"]):
            sampled = record.tokens[row, turn, : record.length[row, turn]]
            assert tokenizer.decode(sampled.tolist(), skip_special=False) == shown["response"]


def test_scores_are_those_of_the_policy_that_sampled(record):
    sampled = np.arange(record.tokens.shape[2]) < record.length[..., None]
    assert sampled.any()
    np.testing.assert_allclose(record.learner_logprob[sampled], record.logprob[sampled], atol=2e-6)
    assert (record.entropy[sampled] >= 0).all()
    assert record.entropy[sampled].max() > 0.01
    for values in (record.learner_logprob, record.entropy, record.advantage):
        assert (values[~sampled] == 0).all()
    assert not record.trained[~sampled].any()
    assert (record.advantage[~record.trained] == 0).all()


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


@pytest.mark.parametrize("stored", [False, True])
def test_a_row_is_played_again_bit_for_bit(finished, object_store, stored):
    place = "s3://bucket/runs/tiny" if stored else str(finished.folder)
    if stored:
        object_store.put(str(finished.folder), place, recursive=True)
    before = {file: file.read_bytes() for file in finished.folder.rglob("*") if file.is_file()}
    code, out, err = tiny_run.command("replay", place, "--iteration", "4", "--row", "2", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["different"] == []
    assert (found["equal_rows"], found["rows"], found["start"]) == (3, 3, "the checkpoint of step 5")
    text = json.loads((finished.folder / "trajectories.jsonl").read_text().splitlines()[-1])
    assert found["episode"] == {name: value for name, value in text.items() if name not in ("step", "iteration")}
    assert {file: file.read_bytes() for file in finished.folder.rglob("*") if file.is_file()} == before


def test_a_row_that_was_changed_is_named(finished, record, tmp_path):
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


def test_files_after_a_step_and_damaged_ones_are_deleted(record, tmp_path):
    for number in (1, 2, 3):
        write_record(tmp_path, _numbered(record, number))
    record_path(tmp_path, 1).write_bytes(b"PK")
    delete_after(tmp_path, step=12)
    assert recorded_iterations(tmp_path) == [2]


def test_the_oldest_files_are_deleted(record, tmp_path):
    for number in (1, 2, 3, 10):
        size = write_record(tmp_path, _numbered(record, number)).stat().st_size
    delete_oldest(tmp_path, int(2.5 * size))
    assert recorded_iterations(tmp_path) == [3, 10]
    delete_oldest(tmp_path, 1)
    assert recorded_iterations(tmp_path) == [10]


def _numbered(record, number):
    return dataclasses.replace(record, header=dataclasses.replace(record.header, iteration=number, step=10 + number))


def test_damaged_files_are_refused(record, tmp_path, monkeypatch):
    path = write_record(tmp_path, record)
    whole = path.read_bytes()
    known = read_record(path)
    assert known.header == record.header
    np.testing.assert_array_equal(known.advantage, record.advantage)
    path.write_bytes(whole[: len(whole) // 2])
    _refused(path)
    with monkeypatch.context() as patch:
        patch.setattr(rollout_records, "VERSION", 9)
        write_record(tmp_path, record)
    _refused(path, "version 1")
    np.savez(path, header=np.array([object()], dtype=object))  # a pickle
    _refused(path)
    write_record(tmp_path, dataclasses.replace(record, advantage=record.advantage[:, :1]))
    _refused(path, "advantage has 1 for T")
    write_record(tmp_path, dataclasses.replace(record, tokens=record.tokens.astype(np.int64)))
    _refused(path, "tokens is int64")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.npy", b"not an array")
    _refused(path)
    path.unlink()
    with pytest.raises(UserError, match="no such file"):
        read_record(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [("iteration", "x"), ("iteration", None), ("iteration", 2**40), ("horizon", 0), ("tasks", [1]), ("evaluation", {})],
)
def test_damaged_headers_are_refused(record, tmp_path, name, value):
    path = write_record(tmp_path, record)
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(arrays["header"].tobytes()) | {name: value}
    np.savez(path, **arrays | {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)})
    _refused(path, name)


def test_a_file_by_the_name_of_another_iteration_is_refused(record, tmp_path):
    path = write_record(tmp_path, record)
    path = path.rename(path.with_name("000099.npz"))
    _refused(path, f"it holds iteration {record.header.iteration}")


def _refused(path, why=""):
    with pytest.raises(UserError, match="no rollout of a run of this version") as found:
        read_record(path)
    assert why in str(found.value)
