"""Says in plain words whether a run has collapsed, when, and on which evidence; also for unfinished runs."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_jax.algos.collapse import ALARMS, BASELINE, Finding, examine, is_solved, recent_success
from agentrl_jax.config.fields import LARGEST
from agentrl_jax.errors import UserError, shortened
from agentrl_jax.runs.curves import Subplot, plot_curves
from agentrl_jax.runs.records import describe_bad, read_rows
from agentrl_jax.runs.run_folder import read_config

_ENOUGH = BASELINE + max(alarm.patience for alarm in ALARMS)

SUBPLOTS = (
    Subplot("success", (("train/success", "training"), ("validation/success", "validation")), is_share=True),
    Subplot("in-group std of returns", (("rollout/in_group_std", ""),)),
    Subplot("groups", (("rollout/zero_std_share", "without spread"),), is_share=True),
    Subplot("entropy per token (nats)", (("actor/entropy", ""),)),
    Subplot("gradient norm, largest", (("actor/grad_norm_max", ""),)),
    Subplot("divergence from the start (nats a token)", (("actor/kl", ""),)),
    Subplot("tokens a turn", (("train/response_tokens", ""),)),
    Subplot(
        "information about the prompt in first turns (nats)",
        (("collapse/first_turn_response_mi", "responses"), ("collapse/first_turn_mi", "thoughts")),
    ),
    Subplot(
        "responses", (("train/valid_format", "format kept"), ("rollout/repeated_share", "repeated")), is_share=True
    ),
)

_READ = frozenset(
    {"iteration", "step", "train/success"}
    | {alarm.metric for alarm in ALARMS}
    | {metric for subplot in SUBPLOTS for metric, _ in subplot.lines}
)
"""Names of the metrics that are read here."""


def diagnose(run: str | os.PathLike[str]) -> dict[str, Any]:
    """Reads a run, finished or not, and says what its metrics show.

    Returns:
        "verdict": collapsed, solved, warnings or healthy, or unknown while there are too few iterations; "text": the
        verdict in words; "lines": its lines, first the verdict, then one for each alarm; "iterations": number seen;
        "alarms": for each raised alarm its name, metric, iterations and values.

    Raises:
        UserError: the folder holds no run, or the run has no iteration yet.
    """
    rows = _iterations(run)
    return judge(rows, [examine(alarm, rows) for alarm in ALARMS])


def plot_indicators(run: str | os.PathLike[str], figure: str | os.PathLike[str]) -> None:
    """Plots what `diagnose` reads, as a PNG.

    Raises:
        UserError: as in `diagnose`, or the figure cannot be written.
    """
    if not Path(figure).absolute().parent.is_dir():
        raise UserError.of("--figure", figure, "but its folder is not there; make it, or name another")
    try:
        plot_curves(_iterations(run), figure, title=Path(run).name, subplots=SUBPLOTS)
    except OSError as error:
        raise UserError.at(figure, f"the figure cannot be written ({error.strerror}); change --figure") from error


def judge(rows: Sequence[Mapping[str, Any]], findings: Sequence[Finding]) -> dict[str, Any]:
    """The verdict over the findings of a run's rows, see `diagnose`."""
    raised = sorted((f for f in findings if f.raised), key=lambda f: f.began or 0)
    collapses = [f for f in raised if f.alarm.collapse]
    solved = [f for f in collapses if is_solved(rows, f)]
    unsolved = [f for f in collapses if f not in solved]
    newest = rows[-1]["iteration"]
    if unsolved:
        verdict, first = "collapsed", unsolved[0]
        sentences = [f"This run has collapsed, from iteration {first.began} on: {first.alarm.about}."]
        if not first.lasts:
            sentences.append(f"It recovered: the last iteration with this sign is {first.raised[-1]}.")
    elif solved:
        verdict = "solved"
        sentences = [
            f"This run has nothing left to learn since iteration {solved[0].began}: {solved[0].alarm.about}, and "
            f"{recent_success(rows, solved[0].raised[0]):.0%} of its episodes succeed."
        ]
    elif raised:
        verdict, sentences = "warnings", ["This run has not collapsed, but it gives signs of trouble."]
    elif newest >= _ENOUGH:
        verdict, sentences = "healthy", [f"No sign of collapse in {newest} iterations."]
    else:
        verdict, sentences = "unknown", [f"{newest} iterations are too few to tell; alarms need {_ENOUGH}."]
    lines = [" ".join(sentences), *(_evidence(f) for f in raised)]
    return {
        "verdict": verdict,
        "text": " ".join(lines),
        "lines": lines,
        "iterations": newest,
        "alarms": [
            {name: getattr(f.alarm, name) for name in ("name", "metric", "unit", "collapse", "source")}
            | {"began": f.began, "raised": f.raised[0], "lasts": f.lasts, "value": f.seen}
            for f in raised
        ],
    }


def _iterations(run: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The RL rows; raises UserError for no run, no row, a line that is not one, or a metric that is not a number."""
    read_config(run)  # refuses a folder without a run
    try:
        found = read_rows(Path(run) / "metrics.jsonl")
    except OSError as error:
        raise UserError.at(
            run, f"metrics.jsonl cannot be read ({shortened(error)}); restore the complete file"
        ) from error
    if found.bad:
        raise UserError.at(
            run,
            f"metrics.jsonl: {describe_bad(found)}; restore the complete file, or go on with the run, which sets it "
            "aside",
            describe_bad(found),
        )
    rows = [row for _, row in found.rows if row["stage"] == "rl"]
    if not rows:
        raise UserError.at(run, "has no iteration of reinforcement learning yet; wait for the first one")
    for number, row in enumerate(rows, start=1):
        for name in _READ & row.keys():
            value = row[name]
            counts = name in ("iteration", "step")
            valid = value is None and not counts
            if isinstance(value, int if counts else int | float) and not isinstance(value, bool):
                valid = (0 <= value < 2**31) if counts else -LARGEST <= value <= LARGEST
            if not valid:
                raise UserError.at(
                    run,
                    f"metrics.jsonl holds {shortened(ascii(value))} as {name} of its iteration {number}, expected "
                    f"{('an integer' if counts else 'a number')}; restore the complete file",
                    value,
                )
    return rows


def _evidence(f: Finding) -> str:
    alarm = f.alarm
    assert f.seen is not None
    assert f.reference is not None
    start = f"times the {f.reference:.3g} of the first {alarm.start}"
    comparison = {
        "significant_fall": f"compared with {f.reference:.3g} before",
        "significant_rise": f"compared with {f.reference:.3g} before",
        "falls": f"less than {alarm.limit:g} {start} values",
        "rises": f"more than {alarm.limit:g} {start} values",
        "drifts": f"beyond {1 / alarm.limit:g} to {alarm.limit:g} {start}",
        "above": f"above {alarm.limit:g}",
        "spikes": f"more than {alarm.limit:g} times the median of the iterations before",
    }[alarm.rule]
    if alarm.rule in ("significant_fall", "significant_rise"):
        seen = f"was {f.seen:.3g} ({alarm.unit}) in the mean from iteration {f.began} to {f.raised[0]}, "
    else:
        often = f"{alarm.patience} times in a row " if alarm.patience > 1 else ""
        seen = f"was {f.seen:.3g} ({alarm.unit}) at iteration {f.raised[0]}, {often}"
    more = "; it lasts" if f.lasts else f"; last at iteration {f.raised[-1]}"
    return f"[{alarm.name}] {alarm.metric} {seen}{comparison}: {alarm.about}{more}."
