"""Run folders in an object store, here the store of `fsspec` in memory."""

import pytest
import tiny_run
from etils import epath
from refusing import refusal

from agentrl_jax.config import load_config
from agentrl_jax.io import files_under
from agentrl_jax.runs.records import read_rows
from agentrl_jax.runs.remote import refresh_copy
from agentrl_jax.runs.run_folder import RunFolder, read_config

pytestmark = pytest.mark.usefixtures("object_store")
PLACE = "gs://bucket/runs/a"
ROW = {"step": 1, "stage": "imitation", "imitation/loss": 1.5}


@pytest.fixture
def config(tmp_path):
    return load_config(tiny_run.write_config(tmp_path))


def test_records_are_uploaded_and_a_run_goes_on_elsewhere(config):
    stored = epath.Path(PLACE) / "metrics.jsonl"
    with RunFolder(config, PLACE) as folder:
        assert folder.checkpoints == f"{PLACE}/checkpoints"
        folder.log(ROW)
        assert not stored.exists()
        folder.upload()
        first = stored.read_text()
        folder.log(ROW | {"step": 2})
        local = folder.path
    assert not local.exists()
    assert stored.read_text().startswith(first)
    assert stored.read_text().count("step") == 2
    with RunFolder(config, PLACE) as folder:
        assert [row["step"] for row in folder.metrics()] == [1, 2]
        assert len(folder.truncate(1)) == 1
    assert (epath.Path(PLACE) / "set_aside" / "after-1.1" / "metrics.jsonl").exists()
    assert stored.read_text() == first
    assert "seed" in str(refusal(RunFolder, config.replace(seed=7), PLACE))
    assert refusal(read_config, PLACE).key == PLACE


def test_an_upload_stores_only_what_is_new_and_the_end_joins_it(config, tmp_path):
    place, parts = epath.Path(PLACE), epath.Path(PLACE) / "metrics.jsonl.parts"
    with RunFolder(config, PLACE) as folder:
        for step in (1, 2, 3, 4):
            folder.log(ROW | {"step": step})
            folder.upload()
        size = len((place / "metrics.jsonl").read_bytes())
        assert [(int(part.name), part.stat().length) for part in sorted(parts.iterdir())] == [
            (number * size, size) for number in (1, 2, 3)
        ]
        copied = tmp_path / "copy"
        for _ in range(2):  # a page that follows the run, and asks again
            refresh_copy(PLACE, copied)
            assert (copied / "metrics.jsonl").read_bytes() == (folder.path / "metrics.jsonl").read_bytes()
        raw = tmp_path / "raw"  # a copy of the killed run on a disk
        for file in files_under(place):
            target = raw / file.relative_to(place).as_posix()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
        assert [row["step"] for _, row in read_rows(raw / "metrics.jsonl").rows] == [1, 2, 3, 4]
        with RunFolder(config, raw) as plain:
            assert [row["step"] for row in plain.metrics()] == [1, 2, 3, 4]
            assert not (plain.path / "metrics.jsonl.parts").exists()
        copy = RunFolder(config, PLACE)  # the first process was killed, and has left its parts
        assert [row["step"] for row in copy.metrics()] == [1, 2, 3, 4]
        assert not parts.exists()
        copy.truncate(2)
        copy.log(ROW | {"step": 3, "imitation/loss": 7.0})
        (parts / f"{4 * size:015d}").write_text("of before the cut")
        copy.upload()
        copy.log(ROW | {"step": 4})
        copy.upload()
        refresh_copy(PLACE, copied)
        rows = [row for _, row in read_rows(copied / "metrics.jsonl").rows]
        assert [(row["step"], row["imitation/loss"]) for row in rows] == [(1, 1.5), (2, 1.5), (3, 7.0), (4, 1.5)]
        copy.close()
        folder._mirror = None
    assert not parts.exists()
    assert (place / "metrics.jsonl").read_text().count("step") == 4


def test_what_a_later_process_deletes_is_deleted_in_the_store(config):
    with RunFolder(config, PLACE) as folder:
        (folder.path / "rollouts").mkdir()
        for number in (1, 2):
            (folder.path / "rollouts" / f"{number:06d}.npz").write_bytes(b"x")
    with RunFolder(config, PLACE) as folder:
        (folder.path / "rollouts" / "000002.npz").unlink()
    assert [path.name for path in (epath.Path(PLACE) / "rollouts").iterdir()] == ["000001.npz"]


def test_a_run_that_is_taken_over_ends(config):
    first = RunFolder(config, PLACE)
    with RunFolder(config, PLACE) as second:
        assert "another run is writing to it" in str(refusal(first.upload))
        second.log(ROW)
    assert (epath.Path(PLACE) / "metrics.jsonl").exists()
