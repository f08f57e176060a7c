"""`agentrl compare`: trains several learning rules from the same starts and reports what each reached."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from agentrl_jax import stopping
from agentrl_jax.terminal import Terminal


@dataclasses.dataclass(frozen=True)
class Compare:
    """Train several learning rules from the same starts with several seeds each, and report what each reached."""

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE.yaml")]
    """YAML file with the keys run (as a file of `agentrl train`), variants (what each changes in algo or optim, by its
    name) and seeds (how many); presets_frozen_lake is the name of one that comes with the package."""
    out: str = ""
    """Folder for the variants, the report and its figure; default: runs/<name of the file>. Variants already in it are
    not run again."""
    only: tuple[str, ...] = ()
    """Variants to run now; the report has all finished variants."""


def run(command: Compare) -> None:
    """Runs the variants of a comparison and writes its report."""
    from agentrl_jax.config.comparison import load_comparison
    from agentrl_jax.parallel.mesh import simulate_cpu_devices

    comparison = load_comparison(command.file)
    simulate_cpu_devices(comparison.devices)  # before JAX is used, which importing the environments does
    from agentrl_jax.io import atomic_write
    from agentrl_jax.studies import comparison_report as reports
    from agentrl_jax.studies.compare import compare

    stem = Path(command.file).stem
    out = Path(command.out or Path("runs") / stem)
    terminal = Terminal()
    with stopping.ends_with(lambda: "the same command goes on with the variant it was at"):
        records = compare(comparison, out, only=command.only, console=terminal)
    reports.draw(records, out / "curves.png", stem)
    if reports.by_value(records)[0]:
        reports.draw_values(records, out / "values.png", stem)
    with atomic_write(out / "report.md") as file:
        file.write(reports.page(records, comparison.pairs, stem, "curves.png"))
    table = Table(title="Success on held-out levels, sampled", title_justify="left")
    for name in ("variant", "start", "end", "low", "high", "gain", "gap", "turns", "tokens"):
        table.add_column(name, justify="left" if name == "variant" else "right", overflow="fold")
    for found in reports.findings(records):
        end = found.sampled
        rates = (f"{rate:.1%}" for rate in (found.start["mean"], end["mean"], end["low"], end["high"]))
        gap = "-" if found.gap_closed is None else f"{found.gap_closed:.1%}"
        used = ("-" if mean is None else f"{mean:.1f}" for mean in (found.turns, found.tokens))
        table.add_row(found.name, *rates, f"{100 * found.gain['mean']:+.1f}", gap, *used)
    terminal.print(table)
    terminal.print(f"on the same levels: {reports.baselines_line(next(iter(records.values())))}")
    terminal.print(f"report: {out / 'report.md'}")
