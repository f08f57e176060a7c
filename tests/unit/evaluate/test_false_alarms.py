"""Collapse alarms in simulated runs: rare if nothing changes, raised if success falls."""

import json
import sys

import numpy as np
from paths import GOLDEN, ROOT

from agentrl_jax.algos import change, collapse

sys.path.insert(0, str(ROOT / "benchmarks"))
import collapse_alarms


def test_runs_that_do_not_change_hardly_raise_anything():
    """One of 72 runs may raise one by chance; with fixed thresholds, nearly all of the first 48 did."""
    found = collapse_alarms.table(collapse_alarms.unchanged((0.001, 0.005, 0.05)), runs=24)
    assert sum(24 * shares["any"] for shares in found.values()) <= 1


def test_falls_are_found():
    found = collapse_alarms.table(collapse_alarms.fallen(), runs=12)
    for name, shares in found.items():
        assert shares["any"] >= 0.8, name
        assert shares["any, early"] == 0
    assert found["20% to 0%"]["success_lost"] == found["20% to 0%"]["spread_lost"] == 1
    assert found["50% to 10%"]["success_fallen"] == found["20% to 0%"]["no_signal"] == 1


def series(high, low, n=20, noise=0.0):
    values = np.r_[np.full(n, high), np.full(n, low)]
    return values + noise * np.resize([1.0, -1.0], 2 * n)


def test_the_stretch_begins_where_the_fall_does():
    found = change.falls(series(0.4, 0.1, noise=0.05), bound=0.2, share=0.5, start=10, shortest=10, longest=20)
    assert (found.begins[:29] == -1).all()
    assert (found.begins[29:39] == 20).all()
    np.testing.assert_allclose(found.means[-1], 0.1, atol=0.01)  # of the clearest stretch, which may be an odd number
    np.testing.assert_allclose(found.references[-1], 0.4)


def test_a_fall_that_chance_may_make_is_none():
    def found(high, low, **options):
        values = series(high, low, noise=0.0)
        return change.falls(values, bound=0.5, share=0.5, start=None, shortest=5, longest=5, **options).begins.max()

    few, many = np.full(40, 10.0), np.full(40, 1000.0)
    assert found(0.02, 0.0, counts=few, independent=True) == -1
    assert found(0.02, 0.0, counts=many, independent=True) == 35
    assert found(0.02, 0.011, counts=many, independent=True) == -1  # more than half of it is left


def test_too_little_is_no_fall():
    for n in (0, 1, 9):
        assert (change.falls(np.ones(n), bound=2.0, share=2.0, start=10, shortest=2, longest=4).begins == -1).all()


def test_a_recorded_collapse_is_found_when_it_happens():
    """A run of StarPO-S solves nothing from iteration 21 to 33; alarms compare stretches of at least ten iterations."""
    record = json.loads((GOLDEN / "recorded_collapse.json").read_text())
    rows = [dict(zip(record["metrics"], values)) for values in zip(*record["metrics"].values())]
    rows = [{"iteration": number, **row} for number, row in enumerate(rows, 1)]
    for iteration, success in zip(record["validation"]["iteration"], record["validation"]["success"]):
        if iteration:
            rows[iteration - 1]["validation/success"] = success
    raised = {alarm.name: collapse.examine(alarm, rows).raised[:1] for alarm in collapse.ALARMS if alarm.collapse}
    assert raised["spread_lost"] == raised["success_fallen"] == (30,)
