"""A whole run that an alarm stops."""

import tiny_run

from agentrl_jax.algos import collapse
from agentrl_jax.algos.collapse import Alarm


def test_a_run_stops_at_a_collapse_and_stays_stopped(tmp_path, monkeypatch):
    """With an alarm that any value raises from the second iteration on."""
    alarm = Alarm("made_up", "rollout/in_group_std", "return", "above", -1.0, 2, True, "made up", "this test")
    monkeypatch.setattr(collapse, "ALARMS", (alarm,))
    file = tiny_run.write_config(tmp_path)
    words = ["train", file, "--run_dir", str(tmp_path / "run"), "--train.on_collapse", "stop"]
    for _ in range(2):
        code, _, err = tiny_run.command(*words)
        assert code == 0, err
        rows = [row for row in tiny_run.metrics(tmp_path / "run") if row["stage"] == "rl"]
        assert [row.get("alarm/made_up") for row in rows] == [None, 1.0]
        summary = tiny_run.summary(tmp_path / "run")
        assert (summary["stopped_by"], summary["iterations"]) == ("made_up", 2)
