"""A run with an adapter that an earlier version wrote is continued."""

import stored_runs


def test_a_run_goes_on(tmp_path):
    stored_runs.check_it_goes_on(stored_runs.unpacked(tmp_path) / "lora", tmp_path / "run")
