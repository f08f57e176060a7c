"""The alarms with their own limits, on made-up metrics and in simulated runs, and their report."""

import json

import pytest
import tiny_run
from benchmark_scripts import script
from evaluating import result_of
from paths import GOLDEN

from agentrl_jax.algos.collapse import ALARMS, examine
from agentrl_jax.evaluate.diagnose import judge

collapse_alarms = script("collapse_alarms")
BY_NAME = {alarm.name: alarm for alarm in ALARMS}
HEALTHY = {
    "rollout/in_group_std": 0.4,
    "rollout/zero_std_share": 0.3,
    "validation/success": 0.4,
    "actor/entropy": 0.8,
    "actor/grad_norm_max": 1.0,
    "actor/kl": 0.05,
    "train/response_tokens": 20.0,
    "rollout/repeated_share": 0.1,
    "train/valid_format": 0.95,
    "train/success": 0.4,
    "collapse/first_turn_mi": 1.5,
    "collapse/first_turn_response_mi": 1.2,
}


def run(iterations=60, **changes):
    """Rows of a run; `changes` by metric (with __ for /): a function of the iteration, or None for no value."""

    def row(i):
        return HEALTHY | {"iteration": i} | {name.replace("__", "/"): of(i) for name, of in changes.items()}

    return [row(i) for i in range(1, iterations + 1)]


def verdict(rows):
    return judge(rows, [examine(alarm, rows) for alarm in ALARMS])


def test_a_steady_run_raises_nothing():
    found = verdict(run())
    assert (found["verdict"], found["alarms"]) == ("healthy", [])
    assert verdict(run(4))["verdict"] == "unknown"
    assert verdict(run(validation__success=lambda i: 0.0))["verdict"] == "healthy", "nothing was there to lose"


@pytest.mark.parametrize(
    ("name", "metric", "value"),
    [
        ("spread_lost", "rollout__in_group_std", 0.03),
        ("no_signal", "rollout__zero_std_share", 0.97),
        ("success_lost", "validation__success", 0.0),
        ("success_fallen", "train__success", 0.15),
        ("entropy_lost", "actor__entropy", 0.05),
        ("entropy_risen", "actor__entropy", 2.5),
        ("gradient_spike", "actor__grad_norm_max", 11.0),
        ("far_from_start", "actor__kl", 1.5),
        ("length_drift", "train__response_tokens", 45.0),
        ("length_drift", "train__response_tokens", 9.0),
        ("repetition", "rollout__repeated_share", 0.99),
        ("format_lost", "train__valid_format", 0.4),
        ("template_thoughts", "collapse__first_turn_mi", 0.3),
        ("template_responses", "collapse__first_turn_response_mi", -0.1),
    ],
)
def test_each_alarm_is_raised_when_its_patience_ends_and_no_other(name, metric, value):
    normal = HEALTHY[metric.replace("__", "/")]
    rows = run(**{metric: lambda i: value if i > 30 else normal})
    found = [f for f in (examine(alarm, rows) for alarm in ALARMS) if f.raised]
    assert [f.alarm.name for f in found] == [name]
    patience = BY_NAME[name].patience
    assert (found[0].began, found[0].raised[0]) == (31, 30 + patience)
    assert found[0].lasts or name == "gradient_spike"
    assert found[0].seen == pytest.approx(value)
    assert verdict(rows)["verdict"] == ("collapsed" if BY_NAME[name].collapse else "warnings")
    # A streak that is one iteration too short raises no alarm.
    short = run(**{metric: lambda i: value if 30 < i < 30 + patience else normal})
    assert not any(examine(alarm, short).raised for alarm in ALARMS) or patience == 1


def test_a_run_that_solves_everything_has_not_collapsed():
    for success, said in ((0.99, "solved"), (0.01, "collapsed")):
        lost = {"rollout__in_group_std": lambda i: 0.4 if i <= 30 else 0.0}
        rows = run(train__success=lambda i: 0.4 if i <= 30 else success, **lost)  # noqa: B023
        assert verdict(rows)["verdict"] == said


def test_a_finished_run_is_diagnosed_from_the_command_line(finished, tmp_path):
    figure = tmp_path / "signs.png"
    assert "4 iterations are too few" in tiny_run.done("diagnose", str(finished.folder), "--figure", str(figure))
    assert figure.read_bytes()[:4] == b"\x89PNG"
    assert result_of("diagnose", finished.folder, "--figure", str(figure))["verdict"] == "unknown"
    code, _, err = tiny_run.command("diagnose", str(finished.folder), "--figure", str(tmp_path / "no" / "x.png"))
    assert (code, "its folder is not there" in err) == (2, True)


def test_falls_are_found():
    found = collapse_alarms.table(collapse_alarms.fallen(), runs=12)
    for name, shares in found.items():
        assert shares["any"] >= 0.8, name
        assert shares["any, early"] == 0
    assert found["20% to 0%"]["success_lost"] == found["20% to 0%"]["spread_lost"] == 1
    assert found["50% to 10%"]["success_fallen"] == found["20% to 0%"]["no_signal"] == 1


def test_a_recorded_collapse_is_found_when_it_happens():
    """A run of StarPO-S solves nothing from iteration 21 to 33; alarms compare stretches of at least ten iterations."""
    record = json.loads((GOLDEN / "recorded_collapse.json").read_text())
    rows = [dict(zip(record["metrics"], values)) for values in zip(*record["metrics"].values())]
    rows = [{"iteration": number, **row} for number, row in enumerate(rows, 1)]
    for iteration, success in zip(record["validation"]["iteration"], record["validation"]["success"]):
        if iteration:
            rows[iteration - 1]["validation/success"] = success
    raised = {alarm.name: examine(alarm, rows).raised[:1] for alarm in ALARMS if alarm.collapse}
    assert raised["spread_lost"] == raised["success_fallen"] == (30,)
