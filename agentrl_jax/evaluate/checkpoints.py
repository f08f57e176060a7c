"""All checkpoints of a run on the same levels."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl_jax.evaluate.eval_set import evaluate_run
from agentrl_jax.evaluate.scaling import KEPT
from agentrl_jax.evaluate.statistics import paired_interval
from agentrl_jax.runs.checkpoint import Checkpoints
from agentrl_jax.runs.run_folder import read_config


def evaluate_checkpoints(
    run: str | os.PathLike[str], *, report: Callable[[str], None] = lambda line: None, **options: Any
) -> dict[str, Any]:
    """Evaluates every checkpoint that a run has kept; `options` are those of `evaluate_run`.

    Returns:
        run, env, episodes, samples, seed, temperature; `best`, the step with the highest success in validation, None
        without one; `axes`, whose `step` has for each checkpoint its step and iteration, `success` and
        `success_greedy`, null, random and optimal play, turns and tokens; `difference` and `difference_greedy`, itself
        minus the first checkpoint, paired by level, and `over_best` and `over_best_greedy`, itself minus the best.

    Raises:
        UserError: as `evaluate_run`.
    """
    read_config(run)
    folder = Path(run) / "checkpoints"
    steps: list[int] = []
    best: int | None = None
    if folder.is_dir():
        with Checkpoints(folder, keep=None) as checkpoints:
            steps, best = checkpoints.steps(), checkpoints.best_step()
    found = []
    for number, step in enumerate(steps, 1):
        report(f"checkpoint {step}, {number} of {len(steps)}")
        found.append(evaluate_run(run, checkpoint=str(step), report=report, **options))
    if not found:
        evaluate_run(run, **options)  # says what is missing
    others = {"difference": found[0]}
    if best is not None:
        others["over_best"] = found[steps.index(best)]
    points = []
    for result in found:
        point = {"step": result["step"], "iteration": result["iteration"]}
        point |= {name: result[name] for name in KEPT if name in result}
        clusters = result["outcomes"]["categories"] if options.get("clusters") else None
        for name, other in others.items():
            for suffix in ("", "_greedy") if other is not result else ():
                pair = (of["outcomes"][f"success{suffix}"] for of in (result, other))
                point[name + suffix] = paired_interval(*pair, clusters=clusters)
        points.append(point)
    named = {name: found[0][name] for name in ("env", "episodes", "samples", "seed", "temperature")}
    named |= {"panel": found[0]["panel"]} if "panel" in found[0] else {}
    return {"run": os.fspath(run), **named, "best": best, "axes": {"step": points}}
