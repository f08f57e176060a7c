import numpy as np
import pytest

from agentrl_jax.algos import collapse
from agentrl_jax.algos.collapse_watch import CollapseWatch

ROWS = 140


def rows_of(kind, rng):
    t = np.arange(ROWS)
    after = np.where(t < 70, 0.0, 1.0) if kind == "step" else np.clip((t - 40) / 60, 0, 1) * (kind == "slope")
    after = np.where((t > 100) & (t < 120), 0.0, after) if kind == "step" else after
    for i in t:
        row = {"iteration": int(i) + 1, "rollout/episodes": 64, "rollout/failed": int(i % 2)}
        for alarm in collapse.ALARMS:
            low = 0.6 * (1 - after[i]) + 0.002
            value = 1 - low if alarm.rule == "significant_rise" else low + 3 * (alarm.rule == "above") * after[i]
            if alarm.rule in ("rises", "spikes", "drifts"):
                value = 1 + 20 * after[i]
            value *= (1e-3 if kind == "low" else 1) * (1 + 0.1 * rng.standard_normal())
            row[alarm.metric] = float("nan") if rng.random() < 0.02 else float(np.clip(value, 0, 50))
            if alarm.metric.startswith("validation/") and i % 3:
                del row[alarm.metric]
            elif alarm.episodes:
                row[alarm.episodes] = 64
        if kind == "slope" and i == 90:
            del row["rollout/episodes"]
        yield row


@pytest.mark.parametrize("kind", ["step", "slope", "none", "low"])
def test_each_row_has_the_alarms_of_all_rows_so_far(kind):
    rows, watch, ever = list(rows_of(kind, np.random.default_rng(0))), CollapseWatch(), set()
    for number, row in enumerate(rows, 1):
        found = watch.add(row)
        expected = [
            alarm
            for alarm in collapse.ALARMS
            if collapse.is_value(row.get(alarm.metric)) and collapse.examine(alarm, rows[:number]).lasts
        ]
        assert list(found) == expected, number
        ever |= {alarm.name for alarm in found}
    names = {alarm.name for alarm in collapse.ALARMS}
    assert kind != "step" or ever == names - {"entropy_lost"}  # entropy rises here
    assert kind not in ("none", "low") or not ever
