"""What the page says of the replay of each recorded iteration; test_roll_back.py has where replays start."""

import dataclasses
import shutil

import pytest
from checkpoints import write_checkpoints
from page_runs import make_record, write_run

from agentrl_jax.viewer import replay_notes
from agentrl_jax.viewer.data import RunData


def notes(run, place=None):
    entry = RunData(run, place=place or "", boards=False).refresh()[0]
    return [info["replay_note"] for info in entry["iterations"]]


@pytest.fixture
def run(tmp_path):
    """A run with two steps before its first iteration, and records of the steps 3, 8 and 9."""
    records = [make_record(i) for i in (1, 6, 7)]
    return write_run(
        tmp_path / "run",
        [dataclasses.replace(r, header=dataclasses.replace(r.header, step=r.header.iteration + 2)) for r in records],
    )


def test_what_is_trained_again(run):
    first, second, third = notes(run)
    assert "first trains 2 steps again, from the start of the run" in first
    assert "first trains 7 steps again, from the start of the run" in second
    write_checkpoints(run, {2: 0, 7: 0})
    first, second, third = notes(run)
    assert (first, second) == ("", "")
    assert "first trains 1 step again, from the checkpoint of step 7" in third


def test_a_checkpoint_that_is_not_complete_does_not_count(run):
    write_checkpoints(run, {2: 0, 7: 0})
    (run / "checkpoints" / "7" / "digests.json").unlink()
    assert "5 steps again, from the checkpoint of step 2" in notes(run)[1]


def test_a_first_iteration_without_imitation_starts_at_once(tmp_path):
    record = make_record(1)
    header = dataclasses.replace(record.header, step=1)
    assert notes(write_run(tmp_path / "run", [dataclasses.replace(record, header=header)])) == [""]


def test_after_a_roll_back(run):
    """Checkpoints of before it, but for the one that the run went back to, do not lead to the iteration."""
    record = make_record(8)
    header = dataclasses.replace(record.header, step=10, roll_backs=1)
    made = write_run(run.parent / "other", [dataclasses.replace(record, header=header)])
    (made / "roll_backs").mkdir()
    (made / "roll_backs" / "1.json").write_text('{"step": 4}')
    write_checkpoints(made, {9: 0})
    assert notes(made) == [
        "No replay: the iteration was played after a roll-back, and no checkpoint that leads to it is left."
    ]
    write_checkpoints(made, {4: 0})
    assert "5 steps again, from the checkpoint of step 4" in notes(made)[0]
    write_checkpoints(made, {8: 1})
    assert "1 step again, from the checkpoint of step 8" in notes(made)[0]


def test_checkpoints_in_an_object_store(run, object_store):
    write_checkpoints(run, {7: 0})
    for file in (run / "checkpoints").rglob("*.*"):
        object_store.pipe(f"gs://bucket/run/{file.relative_to(run)}", file.read_bytes())
    object_store.pipe("gs://bucket/run/checkpoints/7/meta/metadata", b'{"step": 7}')
    shutil.rmtree(run / "checkpoints")
    assert notes(run, "gs://bucket/run")[1] == ""


def test_checkpoints_that_cannot_be_listed(run, monkeypatch):
    def broken(path):
        raise RuntimeError("no access")

    monkeypatch.setattr(replay_notes, "complete_steps", broken)
    entry = RunData(run, boards=False).refresh()[0]
    assert [info["replay_note"] for info in entry["iterations"]] == ["", "", ""]
    assert entry["notes"] == [
        "The checkpoints cannot be listed (no access), so that it is not known how replays start."
    ]
