import dataclasses
import io
import json
import zipfile
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from made_up import EPISODES, GROUP_SIZE, SAID, TRAJECTORY, TURNS
from refusing import refusal

from agentrl_jax.runs import rollout_records
from agentrl_jax.runs.rollout_records import RolloutRecord, move_after, read_record, record_path, write_record


@pytest.fixture(scope="module")
def record():
    numbers = np.random.default_rng(0).normal(size=(3, EPISODES, TURNS, SAID)).astype(np.float32)
    sizes = {"group_size": GROUP_SIZE, "episodes": EPISODES, "horizon": TURNS}
    header = rollout_records.Header(7, 4, 0, ("toy",), temperature=1.0, **sizes)
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


def test_files_after_a_step_are_moved_and_those_that_cannot_be_read_are_kept_aside(record, tmp_path, monkeypatch):
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
    said = move_after(tmp_path, 15, tmp_path / "aside")
    assert [file.name for file in (tmp_path / "aside" / "rollouts").iterdir()] == ["000006.npz"]
    assert rollout_records.recorded_iterations(tmp_path) == [2, 5]
    aside = [f"00000{number}.npz.damaged" for number in (1, 3, 4)]
    assert sorted(path.name for path in record_path(tmp_path, 1).parent.glob("*.damaged")) == aside
    assert [line.rpartition("renamed to ")[2] for line in said] == aside
    assert all(str(record_path(tmp_path, number)) in line for number, line in zip((1, 3, 4), said))
    assert (record_path(tmp_path, 1).parent / aside[0]).read_bytes() == bytes(flipped)
    write_record(tmp_path, _numbered(record, 1)).write_bytes(b"PK")
    assert move_after(tmp_path, 15, tmp_path / "aside")[0].endswith("renamed to 000001.npz.damaged.2")
    assert move_after(tmp_path, 15, tmp_path / "aside") == []


def test_the_oldest_files_are_deleted(record, tmp_path):
    size = write_record(tmp_path, _numbered(record, 1)).stat().st_size
    writer = rollout_records.RolloutWriter(tmp_path)
    for number in (2, 3, 10, 10):
        writer.write(_numbered(record, number), int(2.5 * size))
    assert rollout_records.recorded_iterations(tmp_path) == [3, 10]
    writer.write(_numbered(record, 11), 1)
    assert rollout_records.recorded_iterations(tmp_path) == [11]


def rewritten(path, member, content):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, known in (members | {member: content}).items():
            archive.writestr(name, known)


def flagged(path, at, value):
    """Changes a field of the first member's two headers."""
    data = bytearray(path.read_bytes())
    for signature, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        start = data.index(signature) + at + shift
        data[start : start + 2] = value.to_bytes(2, "little")
    path.write_bytes(data)


def as_file(write, *arguments):
    file = io.BytesIO()
    write(file, *arguments)
    return file.getvalue()


HUGE = as_file(np.lib.format.write_array_header_1_0, {"descr": "<f4", "fortran_order": False, "shape": (10**13,)})
"""An array that names ten trillion numbers and has none."""
DEEP = as_file(np.save, np.frombuffer(b"[" * 200_000, np.uint8))


def test_damaged_files_are_refused(record, tmp_path):
    for damage in (
        lambda path: path.unlink(),
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        lambda path: np.savez(path, header=np.array([object()], dtype=object)),  # a pickle
        lambda path: np.savez(path, header=np.zeros(1)),
        lambda path: rewritten(path, "header.npy", DEEP),
        lambda path: rewritten(path, "reward.npy", HUGE),
        lambda path: flagged(path, 6, 1),  # encrypted
        lambda path: flagged(path, 8, 99),  # compressed in an unknown way
    ):
        path = write_record(tmp_path, record)
        damage(path)
        _refused(path)


def test_numbers_and_headers_of_another_kind_are_refused(record, tmp_path, monkeypatch):
    path = write_record(tmp_path, record)
    with np.load(path) as file:
        header = json.loads(file["header"].tobytes())
    for name, value in (
        *(("iteration", "1"), ("iteration", None), ("iteration", 2**40), ("horizon", 0), ("tasks", [1])),
        *(("evaluation", {}), ("temperature", 10**400), ("roll_backs", 2**31), ("more", 1)),
    ):
        changed = json.dumps(header | {name: value}).encode()
        rewritten(path, "header.npy", as_file(np.save, np.frombuffer(changed, np.uint8)))
        _refused(path, name)
    some = ("task", 1), ("num_turns", TURNS + 1), ("num_turns", -1), ("length", SAID + 1), ("length", -1)
    for name, value in (*some, ("prompt_length", 10**6)):
        values = getattr(record, name).copy()
        values.flat[0] = value
        _refused(write_record(tmp_path, dataclasses.replace(record, **{name: values})), f"{name} has values")
    for changes, why in (
        ({"advantage": record.advantage[:, :1]}, "advantage has 1 for T"),
        ({"tokens": record.tokens.astype(np.int64)}, "tokens is int64"),
    ):
        _refused(write_record(tmp_path, dataclasses.replace(record, **changes)), why)
    with monkeypatch.context() as patch:
        patch.setattr(rollout_records, "VERSION", 9)
        write_record(tmp_path, record)
    _refused(path, "version 1")
    path = write_record(tmp_path, record).rename(path.with_name("000099.npz"))
    _refused(path, f"it holds iteration {record.header.iteration}")


def _refused(path, why=""):
    error = refusal(read_record, path)
    assert error.key == str(path)
    assert why in str(error)
