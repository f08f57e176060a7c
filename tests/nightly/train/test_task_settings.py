"""A run whose tasks have different turns and temperatures."""

import json

import tiny_run

from agentrl_jax.runs.rollout_records import read_record, record_path

TASK = "{env: FrozenLake, groups: 2, max_turns: 1, temperature: 1.5}"


def test_every_part_of_a_run_has_the_turns_and_the_temperature_of_the_task(tmp_path):
    text = tiny_run.CONFIG.replace("{env: FrozenLake, groups: 2}", TASK)
    file, run = tiny_run.write_config(tmp_path, text), tmp_path / "run"
    tiny_run.trained(run, file)
    record = read_record(record_path(run, 3))
    assert (record.header.temperature, record.header.temperatures) == (None, (1.0, 1.5))
    rows = [row for row in tiny_run.metrics(run) if row["stage"] == "rl"]
    assert {row["train/FrozenLake/turns"] for row in rows} == {1.0}
    assert max(row["train/SimpleSokoban/turns"] for row in rows) > 1
    summary = tiny_run.summary(run)
    assert summary["baseline_turns"]["random"] < 2
    out = tmp_path / "eval.json"
    tiny_run.done("eval", str(run), "--env", "FrozenLake", "--episodes", "6", "--out", str(out))
    result = json.loads(out.read_text())
    assert result["mean_turns"] == 1
    tiny_run.done("export", str(run), str(tmp_path / "atif"), "--trajectories", "atif")
    files = [json.loads(path.read_text()) for path in (tmp_path / "atif").rglob("*.json")]
    assert {file["agent"]["extra"]["temperature"] for file in files} <= {1.0, 1.5}
