"""Run folders in an object store, here the store of `fsspec` in memory."""

import pytest
import tiny_run
from etils import epath
from refusing import refusal

from agentrl_jax.config import load_config
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
