"""Terminal output of a run: a live view while it trains, and the table at its end."""

import collections
import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from agentrl_jax.errors import counted
from agentrl_jax.terminal import Terminal, literal
from envs_jax.budget import EXACT, optimal_label

_SPARKS, _SPARK_WIDTH = "▁▂▃▄▅▆▇█", 60


class IterationView(NamedTuple):
    """The numbers that the live view shows: means over an iteration, and the number of updates skipped so far."""

    iteration: int
    success: float
    mean_return: float
    in_group_std: float
    entropy: float
    logprob_gap: float
    tokens_per_second: float
    bad_updates: int = 0

    @classmethod
    def of_row(cls, row: Mapping[str, Any], tokens_per_second: float, bad_updates: int) -> "IterationView":
        """The values from a row of metrics.jsonl."""
        names = ("train/success", "train/return", "rollout/in_group_std", "actor/entropy", "rollout/logprob_gap_mean")
        return cls._make((row["iteration"], *(row[name] for name in names), tokens_per_second, bad_updates))


class LiveView:
    """Shows the progress of a run: redrawn in place on a terminal, otherwise one plain line per iteration."""

    def __init__(
        self, total: int, *, title: str, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ):
        """Prepares the view of a run of `total` iterations; nothing is shown before it is entered as a context manager.

        `clock` returns seconds since a fixed moment, to estimate the time left.
        """
        self._total, self._title, self._clock = total, title, clock
        self._console = console or Terminal()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._history: collections.deque[float] = collections.deque(maxlen=_SPARK_WIDTH)
        self._start: tuple[float, int] | None = None

    def __enter__(self) -> "LiveView":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()

    def note(self, text: str) -> None:
        """Prints a line that stays on screen: a new phase, a validation, a skipped update."""
        self._console.print(literal(text), soft_wrap=True)

    def update(self, progress: IterationView) -> None:
        """Shows an iteration that has just ended."""
        now = self._clock()
        if self._start is None:  # the first iteration of a process includes compilation, so it is not timed
            self._start = (now, progress.iteration)
        done = progress.iteration - self._start[1]
        left = (now - self._start[0]) / done * (self._total - progress.iteration) if done else None
        self._history.append(progress.success)
        if self._live:
            self._live.update(self._redrawn(progress, left), refresh=True)
        else:
            self._console.print(literal(self._line(progress, left)), soft_wrap=True)

    def _fields(self, progress: IterationView, left: float | None) -> list[tuple[str, str]]:
        fields = [
            ("success", f"{progress.success:6.1%}"),
            ("return", f"{progress.mean_return:+.2f}"),
            ("in-group std", f"{progress.in_group_std:.2f}"),
            ("entropy", f"{progress.entropy:.3f}"),
            ("gap", f"{progress.logprob_gap:.0e}"),
            ("tokens/s", f"{progress.tokens_per_second:,.0f}"),
            ("left", duration(left)),
        ]
        return [*fields, ("skipped updates", str(progress.bad_updates))] if progress.bad_updates else fields

    def _line(self, progress: IterationView, left: float | None) -> str:
        width = len(str(self._total))
        shown = "  ".join(f"{name} {value}" for name, value in self._fields(progress, left))
        return f"iteration {progress.iteration:>{width}}/{self._total}  {shown}"

    def _redrawn(self, progress: IterationView, left: float | None) -> Group:
        head = Table.grid(padding=(0, 2), expand=False)
        head.add_row(
            literal(self._title, "bold"),
            Text(f"iteration {progress.iteration}/{self._total}"),
            ProgressBar(total=self._total, completed=progress.iteration, width=30),
        )
        body = Table.grid(padding=(0, 3))
        fields = self._fields(progress, left)
        body.add_row(*(Text(name, style="dim") for name, _ in fields))
        body.add_row(*(Text(value, style="bold") for _, value in fields))
        return Group(head, body, Text(f"success {sparkline(list(self._history), _SPARK_WIDTH)}", style="green"))


def final_table(summary: Mapping[str, Any]) -> Group:
    """The table at the end of a run: success rates on the evaluation levels, and how much RL improved them.

    `summary` is the content of summary.json: `success` and `success_greedy`, each with an interval `{mean, low, high,
    n}` for any of null, random, imitation (before RL), trained and optimal; `held_out`, whether no training episode can
    start from an evaluation level; `levels`, see `levels_line`; `stages`, the names of those before RL (where it is
    missing, `imitated`, whether there was imitation);
    `iterations` of RL, without which nothing is said of it; optionally `optimal_is`, see `Baselines`, `paired`,
    `gap_closed`, `mean_turns` and `mean_tokens` of sampled episodes, and `by_category`, the same for each category of
    level; `best`, the checkpoint that validations chose, on the same levels.
    """
    if not summary["success"]:
        learned = f"{', '.join(summary['stages'])}: {counted(summary['gradient_steps'], 'gradient step')}"
        return Group(Text(f"{learned}; without tasks nothing is played"))
    levels = "held-out levels" if summary["held_out"] else "levels that are not all held out"
    stages = summary.get("stages", ["imitation"] if summary["imitated"] else [])
    start = f"after {', '.join(stages)}" if stages else "before RL"
    best = optimal_label(summary.get("optimal_is", EXACT))
    after = {"trained": "after RL"} if summary["iterations"] else {}
    learners = {"null": "null", "random": "random", "imitation": start, **after, "optimal": best}
    table = Table(title=f"Success on {levels}, with 95 % intervals", title_justify="left")
    for name in ("", "sampled", "greedy", "levels"):
        table.add_column(name, justify="right" if name else "left")
    for category, results in {"": summary, **summary.get("by_category", {})}.items():
        sampled, greedy = results["success"], results.get("success_greedy", {})
        if category:
            table.add_section()
            table.add_row(literal(category, "dim"))
        for key, name in learners.items():
            if key in sampled:
                cells = (name, _rate(sampled[key]), _rate(greedy.get(key)), f"{sampled[key]['n']}")
                table.add_row(*cells, style="bold" if key == "trained" else "")
    paired = summary.get("paired", {}) if after else {}
    # Sampled play is often the better one, too.
    once = {_points(interval): label for label, interval in reversed(paired.items())}
    lines = [Text(f"{label}: {points}") for points, label in reversed(once.items())]
    ended = "after RL" if after else start
    if summary.get("gap_closed") is not None:
        lines.append(Text(f"{ended}, sampled: {gap_text(summary['gap_closed'])}"))
    if best_found := summary.get("best"):
        where = f"iteration {best_found['iteration']}, the best by {best_found['metric']} {best_found['value']:.4g}"
        rates = f"sampled {_rate(best_found['sampled'])}, greedy {_rate(best_found['greedy'])}"
        lines.append(literal(f"{where}: {rates}; over the last, sampled: {_points(best_found['over_last'])}"))
    if "mean_turns" in summary:
        used = f"{summary['mean_turns']:.1f} turns and {summary['mean_tokens']:.1f} sampled tokens per episode"
        lines.append(Text(f"{ended}, sampled: {used}"))
    return Group(table, *lines, *(literal(levels_line(name, known)) for name, known in summary["levels"].items()))


def gap_text(share: float) -> str:
    """Where an agent is between random play, share 0, and optimal play, share 1, or below random play."""
    gap = "the gap between random and optimal play"
    return f"closes {share:.1%} of {gap}" if share >= 0 else f"below random play by {-share:.1%} of {gap}"


def levels_line(name: str, known: Mapping[str, Any]) -> str:
    """One line about a task's evaluation levels; `known` comes from `seen.seen_levels` and `MidwayCount.counts`."""
    images = f" and from images of {known['seen_images']}" if "seen_images" in known else ""
    seen = "an unknown number" if known["seen_levels"] is None else known["seen_levels"]
    counts = f"{counted(known['levels'], 'level')}, {known['distinct_levels']} different; "
    counts += f"training episodes started from {seen} of them{images}"
    if "seen_midway" in known:
        since = f" after step {known['seen_midway_since']}" if "seen_midway_since" in known else ""
        counts += f", and met {known['seen_midway']} on the way{since}"
        if not known.get("seen_midway_from_start", True):
            counts += " (not counting the run that this one starts from)"
    return f"{name}: {counts}" + ("" if known["held_out"] is True else f"; not held out: {known['held_out']}")


def duration(seconds: float | None) -> str:
    """Seconds as m:ss or h:mm:ss; a dash for an unknown time."""
    if seconds is None:
        return "-"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


def sparkline(values: list[float], width: int) -> str:
    """Shares between 0 and 1 as a line of block characters, for the newest `width` values."""
    top = len(_SPARKS) - 1
    return "".join(" " if math.isnan(x) else _SPARKS[min(max(round(x * top), 0), top)] for x in values[-width:])


def _rate(interval: Mapping[str, Any] | None) -> str:
    if not interval:
        return ""
    # The exact probability of a single level is known without a spread.
    single = interval["n"] == 1 and interval["low"] == interval["high"]
    return f"{interval['mean']:6.1%}" + ("" if single else f"  [{interval['low']:.1%}, {interval['high']:.1%}]")


def _points(interval: Mapping[str, Any]) -> str:
    mean, low, high = (100 * interval[key] for key in ("mean", "low", "high"))
    return f"{mean:+.1f} points [{low:+.1f}, {high:+.1f}], paired over {counted(interval['n'], 'level')}"
