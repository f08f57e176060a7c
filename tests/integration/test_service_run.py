"""A run whose environment is a service in this process: it is trained, evaluated and exported."""

import json

import tiny_run

from agentrl_jax.evaluate.scripted import evaluate_scripted


def test_a_run_on_a_service_is_trained_evaluated_and_exported(tmp_path):
    folder, file = tmp_path / "run", tiny_run.write_config(tmp_path, tiny_run.MAZE)
    words = ("--train.iterations", "2", "--train.validate_every", "0", "--tasks.0.validation", "")
    output = tiny_run.trained(folder, file, *words, "--tasks.0.sampling.kind", "distinct")
    last = tiny_run.metrics(folder)[-1]
    assert (last["iteration"], last["levels/maze/different"]) == (2, 4)
    assert last["env/failed_share"] == last["env/retries"] == last["env/lone_share"] == 0
    assert last["env/calls"] == 1 + 3
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["held_out"] is True
    assert summary["success"]["optimal"]["n"] == 4
    assert 0 <= summary["success"]["random"]["mean"] <= summary["success"]["optimal"]["mean"]
    assert summary["success"]["null"] == evaluate_scripted("maze", "null", items="12-15", turns=3)["success"]
    assert [line.split()[1] for line in output.splitlines() if line.startswith("│")][:2] == ["null", "random"]
    text = (folder / "trajectories.jsonl").read_text()
    assert "Your current position is at position" in text
    assert "Action:" in text

    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    found = json.loads(tiny_run.done("eval", str(folder), "--json"))
    assert {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()} == before
    assert found["success"] == summary["success"]["trained"]
    assert found["episodes"] == found["success"]["n"] == found["random"]["n"] == found["null"]["n"] == 4
    assert found["outcomes"]["null"] == [0.0] * 4
    assert "has items of maze only" in tiny_run.refusal("eval", str(folder), "--env", "FrozenLake")
    tiny_run.done("export", str(folder), str(tmp_path / "out"))
