"""Slow checks of what the quick tests of the same name check."""

import json

import tiny_run

from agentrl_jax.evaluate.records import read_record
from agentrl_jax.services.environments.maze import STARTS, distances


def test_a_run_on_services_plays_a_panel_of_its_service(served, tmp_path):
    out = tmp_path / "record.json"
    code, printed, err = tiny_run.command("eval", str(served), "--panel", "maze-v1", "--json", "--out", str(out))
    assert code == 0, err
    record = read_record(out)
    assert json.loads(printed) == json.loads(out.read_text())
    assert (len(record.outcomes.samples), record.decoding.turns, record.mean_turns) == (25, 2, 2.0)
    assert record.seen.seen_levels == 0, "nothing was learned from"
    # By hand: only starts at most two moves from the goal can be solved in two turns.
    near = int(sum(record.outcomes.optimal))
    assert near == sum(distances()[start] <= 2 for start in STARTS) == 2
    code, _, err = tiny_run.command("eval", str(served), "--panel", "wordle-v1")
    assert code == 2
    assert "trained on the services maze" in err
