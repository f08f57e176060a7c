"""Two runs on the same levels, level by level."""

import os
from collections.abc import Callable
from typing import Any

from agentrl_jax.config import TaskConfig
from agentrl_jax.errors import UserError
from agentrl_jax.evaluate import panels
from agentrl_jax.evaluate.eval_set import evaluate_run
from agentrl_jax.evaluate.evaluated_task import check_playable, with_task
from agentrl_jax.evaluate.statistics import paired_interval
from agentrl_jax.runs.run_folder import read_config

DIFFERENCES = {"difference": "success", "difference_greedy": "success_greedy"}
"""Names of the differences, and the outcomes that they compare."""


def evaluate_against(
    run: str | os.PathLike[str],
    other: str | os.PathLike[str],
    *,
    report: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> dict[str, Any]:
    """Evaluates two runs on the same levels with the same seed, samples and temperature, those of the first run.

    `options` are those of `evaluate_run`, for both. Each run keeps its own limits of turns and actions. Runs whose
    tasks differ are refused before a model is loaded or anything is played.

    Returns:
        `run` and `against`, the results of `evaluate_run`; `difference` and `difference_greedy`, first minus second
        with a paired interval, clustered with `clusters`, see `statistics.paired_interval`.

    Raises:
        UserError: as in `evaluate_run`, or the runs do not play the same task or levels.
    """
    _check_same_task(str(run), str(other), **{name: options.get(name) for name in ("env", "levels", "panel")})
    first = evaluate_run(run, **options, report=report)
    fixed = () if options.get("panel") else ("env", "episodes", "seed")
    same = {name: first[name] for name in (*fixed, "temperature")}
    second = evaluate_run(other, **options | same, report=report)
    if first["levels_digest"] != second["levels_digest"]:
        raise UserError(
            f"{run} and {other} play different levels of {first['env']}: their options or level files differ; name the "
            "levels with --levels",
            key=run,
            value=other,
        )
    results: dict[str, Any] = {"run": first, "against": second}
    for name, outcome in DIFFERENCES.items():
        pair = first["outcomes"][outcome], second["outcomes"][outcome]
        clusters = first["outcomes"]["categories"] if options.get("clusters") else None
        results[name] = paired_interval(*pair, clusters=clusters)
    return results


def _check_same_task(run: str, other: str, *, env: str | None, levels: str | None, panel: str | None) -> None:
    """Refuses runs that would play different tasks, or of which one cannot play the task."""
    configs = [with_task(read_config(name), name, env, levels, panel) for name in (run, other)]
    first, second = (config.tasks[0] for config in configs)
    if _differ(first, second):
        raise UserError(
            f"{run} plays {_named(first)} and {other} plays {_named(second)}, which cannot be compared level by level; "
            "name an environment or levels that both can play with --panel, or with --env",
            key=run,
            value=other,
        )
    for config in configs:
        check_playable(config)


def _differ(first: TaskConfig, second: TaskConfig) -> bool:
    """Whether tasks are known to be different before their levels are made; the levels are compared after play.

    Options of an environment with items say what is shown of a level (`panels.on_panel`), so that they may differ.
    """
    if first.env != second.env:
        return True
    both = first.options.keys() & second.options.keys()
    return first.env not in panels.SERVICES and any(first.options[name] != second.options[name] for name in both)


def _named(task: TaskConfig) -> str:
    options = ", ".join(f"{name} {value}" for name, value in task.options.items())
    return f"{task.env} ({options})" if options else task.env
