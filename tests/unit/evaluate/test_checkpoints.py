"""All checkpoints of a run on the same levels."""

import json

import numpy as np
import pytest
from evaluating import refusal, result_of

from agentrl_jax.evaluate import checkpoints
from agentrl_jax.evaluate.statistics import paired_interval, success_interval
from agentrl_jax.runs.checkpoint import Checkpoints


@pytest.fixture
def played(monkeypatch):
    """Results by step: step s succeeds on levels 0 to s - 1 sampled, and on all but the first s greedy."""

    def evaluate(run, *, checkpoint, report, **options):
        step = int(checkpoint)
        sampled, greedy = np.arange(12) < step, np.arange(12) >= step
        outcomes = {"success": sampled.tolist(), "success_greedy": greedy.tolist(), "categories": None}
        found = {"run": run, "step": step, "iteration": max(step - 3, 0), "env": "X", "episodes": 12, "samples": 1}
        found |= {"seed": 5, "temperature": 1.0, "outcomes": outcomes, "mean_turns": float(step)}
        return found | {name: success_interval(np.array(outcomes[name])) for name in ("success", "success_greedy")}

    monkeypatch.setattr(checkpoints, "evaluate_run", evaluate)


def test_each_is_compared_with_the_first_and_the_best(finished, played, tmp_path):
    with Checkpoints(finished.folder / "checkpoints", keep=None) as kept:
        steps, best = kept.steps(), kept.best_step()
    found = result_of("eval", finished.folder, "--checkpoint", "all", "--out", tmp_path / "all.json")
    points = found["axes"]["step"]
    assert ([point["step"] for point in points], found["best"]) == (steps, best)
    assert len(steps) > 1
    for point in points:
        first, at_best, own = (np.arange(12) < step for step in (steps[0], best, point["step"]))
        assert point["success"]["mean"] == min(point["step"], 12) / 12
        expected = None if point["step"] == steps[0] else paired_interval(own, first)
        assert point.get("difference") == expected
        assert point.get("difference_greedy") == (None if expected is None else paired_interval(~own, ~first))
        assert point.get("over_best") == (None if point["step"] == best else paired_interval(own, at_best))
    stored = json.loads((tmp_path / "all.json").read_text())
    assert stored["axes"] == found["axes"]
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_for_one_checkpoint_is_refused(finished, played, tmp_path):
    refused = ("--against", str(finished.folder)), ("--record", str(tmp_path / "new")), ("--best_of", "2")
    for words in (*refused, ("--out", str(tmp_path / "all.png"))):
        error = refusal("eval", finished.folder, "--checkpoint", "all", *words)
        assert error.key == words[0]


@pytest.mark.nightly
def test_a_checkpoint_has_the_numbers_of_its_own_evaluation(finished):
    words = ("--env", "FrozenLake", "--episodes", "8")
    found = result_of("eval", finished.folder, "--checkpoint", "all", *words)
    for point in found["axes"]["step"][::2]:
        alone = result_of("eval", finished.folder, "--checkpoint", str(point["step"]), *words)
        assert {name: alone[name] for name in point if name in alone} == {
            name: point[name] for name in point if name in alone
        }
