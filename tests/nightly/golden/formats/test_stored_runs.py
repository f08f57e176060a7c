"""Runs that an earlier version wrote, one with an adapter, are continued."""

import pytest
import stored_runs


@pytest.mark.parametrize("name", ["compiled", "lora"])
def test_a_run_goes_on(name, tmp_path):
    stored_runs.check_it_goes_on(stored_runs.unpacked(tmp_path) / name, tmp_path / "run")
