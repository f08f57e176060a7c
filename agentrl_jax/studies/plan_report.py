"""A plan as JSON and as terminal tables."""

import math
from typing import Any

from rich.console import Group
from rich.table import Table

from agentrl_jax.parallel import hlo
from agentrl_jax.parallel.topology import GIB
from agentrl_jax.studies.abstract_run import ProgramPlan
from agentrl_jax.studies.plan import TOKEN_LOOP, Plan

_WHERE = ("once", "each turn or microbatch", "each token or layer")


def as_json(plan: Plan, memory: int | None) -> dict[str, Any]:
    """The plan as JSON data, in bytes per device, see `plan.Plan`."""
    programs = {}
    for name, program in plan.programs.items():
        operations = [
            {"loops": depth, "operation": kind, "count": count, "largest_bytes": largest}
            for (depth, kind), (count, largest) in sorted(_by_loops(program).items())
        ]
        programs[name] = {key: _finite(value) for key, value in vars(program).items()} | {"operations": operations}
    sizes = {key: value for key, value in vars(plan).items() if key != "programs"}
    peaks = {f"{name}_peak": peak for name, peak in plan.peaks.items()}
    return {**sizes, **peaks, "memory": memory, **programs}


def as_table(plan: Plan, memory: int | None) -> Group:
    """The plan as tables for a terminal; `memory` is that of a device in bytes, None if unknown."""
    mesh = " x ".join(f"{name} {size}" for name, size in plan.mesh.items())
    sizes = Table(title=f"Memory of one device ({mesh})", title_justify="left")
    for name in ("", "GiB"):
        sizes.add_column(name, justify="right" if name else "left")
    for title, value in (
        (f"parameters, in the layout of the update ({plan.parameters:,} in all)", plan.update_parameters),
        ("parameters, in the layout of the rollout", plan.rollout_parameters),
        ("optimizer", plan.optimizer),
        (f"keys and values ({plan.rows} rows, contexts of up to {plan.context} positions)", plan.cache),
        *((f"{name}: temporaries, {_among(name)} among them", one.temporaries) for name, one in plan.programs.items()),
        *((f"{name}: all", peak) for name, peak in plan.peaks.items()),
    ):
        sizes.add_row(title, f"{value / GIB:.2f}")
    peak = max(plan.peaks.values())
    if memory:
        sizes.caption = f"{peak / GIB:.2f} of {memory / GIB:.0f} GiB: {'fits' if peak <= memory else 'DOES NOT FIT'}"
    return Group(sizes, _programs(plan), f"Lengths of prompts by {plan.tokenizer} tokenizer.")


def _among(program: str) -> str:
    return "activations" if program == "update" else "cache and its parameters"


def _programs(plan: Plan) -> Table:
    table = Table(
        title="Programs", title_justify="left", caption="A loop whose length the compiler does not know counts once."
    )
    for name in ("", *plan.programs):
        table.add_column(name, justify="right" if name else "left")
    programs = plan.programs.values()
    table.add_row("compiled in", *(f"{program.seconds:.0f} s" for program in programs))
    table.add_row("operations", *(f"{program.flops:.2e}" for program in programs))
    table.add_row("bytes moved", *(f"{program.accessed:.2e}" for program in programs))
    estimates = (program.estimate for program in programs)
    table.add_row("the compiler's estimate", *(f"{x:.3g} s" if x and x > 0 else "none" for x in estimates))
    counted = [_by_loops(program) for program in programs]
    for depth, kind in sorted(set().union(*counted)):
        if kind in (*hlo.COLLECTIVES, *hlo.HOST):
            title = f"{kind}, {_WHERE[min(depth, TOKEN_LOOP)]}"
            table.add_row(title, *(_operations(of_program.get((depth, kind))) for of_program in counted))
    return table


def _by_loops(program: ProgramPlan) -> dict[tuple[int, str], tuple[int, int]]:
    """Number and largest size in bytes of the operations of each kind, by loop depth."""
    sizes: dict[tuple[int, str], list[int]] = {}
    for one in program.operations:
        sizes.setdefault((one.depth, one.kind), []).append(one.size)
    return {key: (len(found), max(found)) for key, found in sizes.items()}


def _operations(entry: tuple[int, int] | None) -> str:
    return "" if entry is None else f"{entry[0]} (to {entry[1] / 2**20:.3g} MiB)"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
