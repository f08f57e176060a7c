"""A run with a recorded rollout, as a fixture."""

import filelock
import pytest
import recorded

from agentrl_jax.runs.rollout_records import read_record, record_path


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory, worker_id):
    """The folder of a run and its record, one for all processes, because its program takes seconds to compile."""
    shared = tmp_path_factory.getbasetemp() if worker_id == "master" else tmp_path_factory.getbasetemp().parent
    folder = shared / "recorded" / "tiny"
    with filelock.FileLock(shared / "recorded.lock"):
        if not folder.parent.exists():
            folder.parent.mkdir()
            recorded.write_run(folder)
    return folder, read_record(record_path(folder, 4))
