"""Files of recorded rollouts: they are bounded, moved aside where they cannot be read, and refused if damaged."""

import dataclasses
import json
import zipfile
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from made_up import EPISODES, GROUP_SIZE, SAID, TRAJECTORY, TURNS

from agentrl_jax.errors import UserError
from agentrl_jax.runs import rollout_records
from agentrl_jax.runs.rollout_records import (
    Header,
    RolloutRecord,
    RolloutWriter,
    delete_after,
    read_record,
    record_path,
    recorded_iterations,
    write_record,
)


@pytest.fixture(scope="module")
def record():
    numbers = np.random.default_rng(0).normal(size=(3, EPISODES, TURNS, SAID)).astype(np.float32)
    header = Header(
        step=7,
        iteration=4,
        roll_backs=0,
        tasks=("toy",),
        group_size=GROUP_SIZE,
        episodes=EPISODES,
        horizon=TURNS,
        temperature=1.0,
    )
    rows = jax.tree.map(np.asarray, TRAJECTORY)
    scores = SimpleNamespace(logprob=numbers[0], entropy=numbers[1])
    learned = SimpleNamespace(advantage=numbers[2], trained=np.asarray(rows.response_mask))
    return RolloutRecord.of_trajectory(header, rows, scores, learned)


def test_a_record_comes_back_as_it_was_written(record, tmp_path):
    read = read_record(write_record(tmp_path, record))
    assert read.header == record.header
    for field in dataclasses.fields(RolloutRecord)[1:]:
        np.testing.assert_array_equal(getattr(read, field.name), getattr(record, field.name), err_msg=field.name)
    np.testing.assert_array_equal(read.logprob, TRAJECTORY.response.logprob)
    np.testing.assert_allclose(read.returns, np.asarray(TRAJECTORY.turn.reward).sum(axis=1), rtol=1e-6)
    unlearned = RolloutRecord.of_trajectory(
        record.header, jax.tree.map(np.asarray, TRAJECTORY), SimpleNamespace(logprob=record.logprob, entropy=None)
    )
    assert not unlearned.trained.any()
    assert not unlearned.advantage.any()


def _numbered(record, number):
    return dataclasses.replace(record, header=dataclasses.replace(record.header, iteration=number, step=10 + number))


def test_files_after_a_step_are_deleted_and_those_that_cannot_be_read_are_kept_aside(record, tmp_path, monkeypatch):
    """One flipped bit, another version, and one that may not be read."""
    for number in (1, 2, 4, 5, 6):
        write_record(tmp_path, _numbered(record, number))
    with monkeypatch.context() as patch:
        patch.setattr(rollout_records, "VERSION", 2)
        write_record(tmp_path, _numbered(record, 3))
    flipped = bytearray(record_path(tmp_path, 1).read_bytes())
    flipped[len(flipped) // 2] ^= 1
    record_path(tmp_path, 1).write_bytes(flipped)
    record_path(tmp_path, 4).unlink()
    record_path(tmp_path, 4).mkdir()
    said = delete_after(tmp_path, step=15)
    assert recorded_iterations(tmp_path) == [2, 5]
    aside = ["000001.npz.damaged", "000003.npz.damaged", "000004.npz.damaged"]
    assert sorted(path.name for path in record_path(tmp_path, 1).parent.glob("*.damaged")) == aside
    assert [line.rpartition("renamed to ")[2] for line in said] == aside
    assert [str(record_path(tmp_path, number)) in line for number, line in zip((1, 3, 4), said)] == [True] * 3
    assert (record_path(tmp_path, 1).parent / aside[0]).read_bytes() == bytes(flipped)
    write_record(tmp_path, _numbered(record, 1)).write_bytes(b"PK")
    assert delete_after(tmp_path, step=15)[0].endswith("renamed to 000001.npz.damaged.2")
    assert delete_after(tmp_path, step=15) == []


def test_the_oldest_files_are_deleted(record, tmp_path):
    size = write_record(tmp_path, _numbered(record, 1)).stat().st_size
    writer = RolloutWriter(tmp_path)
    for number in (2, 3, 10, 10):
        writer.write(_numbered(record, number), int(2.5 * size))
    assert recorded_iterations(tmp_path) == [3, 10]
    writer.write(_numbered(record, 11), 1)
    assert recorded_iterations(tmp_path) == [11]


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
