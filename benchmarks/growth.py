"""What the host does once an iteration, in a short and in a long run: no step may cost more as a run gets longer.

    python benchmarks/growth.py [--rows 300 30000] [--repeats 200]

Rows of metrics are synthetic, nothing is trained. For each step the least time of `--repeats` calls after so many
iterations is printed, interleaved between the two runs, and their ratio.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from agentrl_jax.algos import collapse
from agentrl_jax.config import Config, TaskConfig
from agentrl_jax.config.defaults import with_defaults
from agentrl_jax.runs.live import IterationView, LiveView
from agentrl_jax.runs.remote import Mirror
from agentrl_jax.runs.run_folder import RunFolder
from agentrl_jax.terminal import Terminal
from agentrl_jax.train.collapse_monitor import CollapseMonitor

LEVELS = [f"{number:016x}" for number in range(16)]
"""Ids of the levels of an iteration."""


def row(iteration: int, random: np.random.Generator) -> dict[str, object]:
    """The metrics of an iteration in which nothing happens."""
    values = {alarm.metric: 0.4 + 0.05 * float(random.random()) for alarm in collapse.ALARMS}
    counts = {"rollout/episodes": 64, "validation/episodes": 64, "update/trained_tokens": 1000}
    return {"step": iteration, "stage": "rl", "iteration": iteration, **values, **counts}


class LongRun:
    """A run of so many iterations, whose next ones are timed."""

    def __init__(self, folder: Path, rows: int):
        self.random, self.iteration = np.random.default_rng(0), rows
        self.monitor = CollapseMonitor(True, (row(i, self.random) for i in range(1, rows + 1)), lambda line: None)
        config = with_defaults(Config(run_dir=str(folder), tasks=(TaskConfig(env="X", groups=4),)))
        self.folder = RunFolder(config)
        earlier = ({"step": i, "stage": "rl", "levels": LEVELS} for i in range(1, rows + 1))
        (folder / "levels.jsonl").write_text("".join(json.dumps(one) + "\n" for one in earlier))
        self.view = LiveView(rows, title="", console=Terminal(quiet=True))
        store = folder.with_name(f"{folder.name}-store")  # a folder takes its place
        store.mkdir()
        self.mirror = Mirror(str(store))
        self.record = self.mirror.local / "metrics.jsonl"
        self.record.write_text("".join(json.dumps(row(i, self.random)) + "\n" for i in range(1, rows + 1)))
        self.mirror.upload()

    def _upload(self, new: dict[str, object]) -> None:
        """What a checkpoint does with a record in an object store."""
        with self.record.open("a") as file:
            file.write(json.dumps(new) + "\n")
        self.mirror.upload()

    def steps(self) -> dict[str, Callable[[], object]]:
        """By name, what an iteration does on the host."""
        self.iteration += 1
        new = row(self.iteration, self.random)
        shown = IterationView(self.iteration, 0.5, 0.5, 0.5, 0.5, 0.0, 100.0)
        return {
            "alarms": lambda: self.monitor.see(dict(new)),
            "metrics": lambda: self.folder.log(new),
            "levels": lambda: self.folder.log_levels(self.iteration, "rl", LEVELS),
            "view": lambda: self.view.update(shown),
            "upload": lambda: self._upload(new),
        }


def main(words: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, nargs=2, default=[300, 30000])
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as home:
        runs = [LongRun(Path(home) / str(rows), rows) for rows in options.rows]
        least: dict[str, list[float]] = {}
        for _ in range(options.repeats):
            for number, run in enumerate(runs):
                for name, step in run.steps().items():
                    began = time.perf_counter()
                    step()
                    seconds = least.setdefault(name, [float("inf")] * 2)
                    seconds[number] = min(seconds[number], time.perf_counter() - began)
        for run in runs:
            run.folder.close()
    print(f"{'milliseconds':14}" + "".join(f"{f'after {rows}':>14}" for rows in options.rows) + f"{'ratio':>8}")
    for name, (short, long) in least.items():
        print(f"{name:14}{1e3 * short:14.3f}{1e3 * long:14.3f}{long / short:8.2f}")


if __name__ == "__main__":
    main()
