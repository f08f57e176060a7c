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


def with_step(record, step, **changes):
    return dataclasses.replace(record, header=dataclasses.replace(record.header, step=step, **changes))


@pytest.fixture
def run(tmp_path):
    """A run with two steps before its first iteration, and records of the steps 3, 8 and 9."""
    return write_run(tmp_path / "run", [with_step(make_record(i), i + 2) for i in (1, 6, 7)])


def test_what_is_trained_again(run):
    first, second, third = notes(run)
    assert "first trains 2 steps again, from the start of the run" in first
    assert "first trains 7 steps again, from the start of the run" in second
    write_checkpoints(run, {2: 0, 7: 0})
    first, second, third = notes(run)
    assert (first, second) == ("", "")
    assert "first trains 1 step again, from the checkpoint of step 7" in third
    (run / "checkpoints" / "7" / "digests.json").unlink()  # it is not complete
    assert "5 steps again, from the checkpoint of step 2" in notes(run)[1]
    assert notes(write_run(run.parent / "without imitation", [with_step(make_record(1), 1)])) == [""]


def test_after_a_roll_back(tmp_path):
    run = write_run(tmp_path / "run", [with_step(make_record(8), 10, roll_backs=1)])
    (run / "roll_backs").mkdir()
    (run / "roll_backs" / "1.json").write_text('{"step": 4}')
    write_checkpoints(run, {9: 0})
    assert "no checkpoint that leads to it is left" in notes(run)[0]
    write_checkpoints(run, {4: 0})
    assert "5 steps again, from the checkpoint of step 4" in notes(run)[0]


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
    (said,) = entry["notes"]
    assert "no access" in said
