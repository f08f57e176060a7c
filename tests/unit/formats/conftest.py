"""A run with a recorded rollout, shared because its program takes seconds to compile."""

import pytest
import recorded


@pytest.fixture(scope="session")
def recorded_run(tmp_path_factory):
    """The folder of a run, and its record."""
    folder = tmp_path_factory.mktemp("recorded") / "tiny"
    return folder, recorded.write_run(folder)
