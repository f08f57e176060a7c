"""A sweep as JSON and as terminal tables."""

from typing import Any

from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table

from agentrl_jax.parallel.topology import GIB
from agentrl_jax.studies.phases import OPTIMIZER
from agentrl_jax.studies.sweep import LIMITS, RESHARD, Candidate, Sweep

SHOWN = 10
"""Candidates in the table."""

_SHORT = (RESHARD, OPTIMIZER)  # of little interest: only among the phases of the best candidate
_CAPTION = (
    "mesh: data x fsdp x sequence x tensor; rows: episodes that a replica plays at a time; seconds of a phase and what "
    "limits it; peak memory in GiB, ~ estimated, = of the compiled programs"
)


def as_json(found: Sweep, memory: int | None) -> dict[str, Any]:
    """The sweep as JSON data: seconds, and bytes per device."""
    return {
        "memory": memory,
        "compiled_phases": found.compiled_phases,
        "compiled_runs": found.compiled_runs,
        "notes": found.notes,
        "file": found.file,
        "candidates": [_candidate(one) for one in found.candidates],
        "own": found.own and _candidate(found.own),
        "nearest": found.nearest and _candidate(found.nearest),
    }


def as_table(found: Sweep, memory: int | None) -> Group:
    """The best candidates and the file's own, and what limits the phases of the best."""
    title = f"{len(found.candidates)} meshes and batch sizes by estimated time of an iteration"
    table = Table(title=title, title_justify="left", caption=_CAPTION, caption_justify="left", box=SIMPLE)
    names = [phase.name for phase in found.candidates[0].phases if phase.name not in _SHORT]
    for name in ("", "mesh", "rows", "accum.", "s", *names, "peak", *([] if memory is None else [""])):
        table.add_column(name, justify="right")
    shown = found.candidates[:SHOWN]
    shown += [found.own] if found.own and not any(one is found.own for one in shown) else []
    for one in shown:
        place = next(n for n, other in enumerate(found.candidates, 1) if other is one)
        table.add_row(
            f"{'*' if one.settings == found.file else ''}{place}",
            "x".join(map(str, one.mesh.values())),
            str(one.rows),
            str(one.config.algo.grad_accum_steps),
            f"{one.seconds:.3g}",
            *(f"{phase.seconds:.2g} {phase.limit[:4]}." for phase in one.phases if phase.name in names),
            f"{'=' if one.exact else '~'}{one.peak / GIB:.2f}",
            *([] if memory is None else ["fits" if one.fits else "DOES NOT FIT"]),
        )
    return Group(table, _limits(found.nearest or found.candidates[0], found), *_notes(found, memory))


def _limits(best: Candidate, found: Sweep) -> Table:
    table = Table(title=f"Phases of an iteration: {_words(best, found)}", title_justify="left", box=SIMPLE)
    for name in ("", "calls", *(f"{limit}, s" for limit in LIMITS), "limited by"):
        table.add_column(name, justify="left" if name in ("", "limited by") else "right")
    for phase in best.phases:
        seconds = [f"{getattr(phase, limit):.3g}" for limit in LIMITS]
        table.add_row(phase.name, f"{phase.calls:.4g}", *seconds, phase.limit)
    return table


def _notes(found: Sweep, memory: int | None) -> list[str]:
    notes = ["* the settings of the file" if found.own else "The settings of the file are not valid on these devices."]
    if memory is not None and not any(one.fits for one in found.candidates):
        nearest = found.nearest
        if nearest is None:
            notes.append("NOTHING FITS, not even with model.remat full, optim.offload and mesh.rollout wide.")
        else:
            kind = "=" if nearest.exact else "~"
            peak = f"{kind}{nearest.peak / GIB:.2f} of {memory / GIB:.0f} GiB, {nearest.seconds:.3g} s"
            verdict = "" if nearest.fits else "; compiled, IT DOES NOT FIT EITHER"
            notes.append(f"NOTHING FITS. The nearest that does: {_words(nearest, found)} ({peak}){verdict}.")
    notes += found.notes
    notes.append(f"Compiled: {found.compiled_phases} phase programs, {found.compiled_runs} whole runs.")
    return notes


def _words(one: Candidate, found: Sweep) -> str:
    """The words that turn the file into a candidate's configuration on the command line."""
    changed = [f"--{key} {_value(value)}" for key, value in one.settings.items() if value != found.file[key]]
    return " ".join(changed) or "the settings of the file"


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _candidate(one: Candidate) -> dict[str, Any]:
    phases = [{**vars(phase), "seconds": phase.seconds, "limit": phase.limit} for phase in one.phases]
    plain = ("mesh", "rows", "microbatch", "seconds", "rollout_peak", "update_peak", "fits", "exact", "settings")
    return {name: getattr(one, name) for name in plain} | {"phases": phases}
