"""Two runs on the same levels, level by level."""

import os
from collections.abc import Callable
from typing import Any

from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.eval_set import evaluate_run
from agentrl_jax.evaluate.statistics import paired_bootstrap, paired_interval

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

    `options` are those of `evaluate_run`, for both. Each run keeps its own limits of turns and actions.

    Returns:
        `run` and `against`, the results of `evaluate_run`; `difference` and `difference_greedy`, first minus second
        with a paired interval, clustered with `clusters`, see `statistics.paired_interval`, and as `bootstrap_low` and
        `bootstrap_high` the bounds of `statistics.paired_bootstrap`.

    Raises:
        UserError: as in `evaluate_run`, or the runs do not play the same levels.
    """
    first = evaluate_run(run, **options, report=report)
    fixed = () if options.get("panel") else ("env", "episodes", "seed")
    same = {name: first[name] for name in (*fixed, "temperature")}
    second = evaluate_run(other, **options | same, report=report)
    if first["levels_digest"] != second["levels_digest"]:
        raise UserError(
            f"{run} and {other} play different levels of {first['env']}: their options or level files differ; name the "
            "levels with --levels"
        )
    results: dict[str, Any] = {"run": first, "against": second}
    for name, outcome in DIFFERENCES.items():
        pair = first["outcomes"][outcome], second["outcomes"][outcome]
        clusters = first["outcomes"]["categories"] if options.get("clusters") else None
        results[name] = paired_interval(*pair, clusters=clusters)
        low, high = paired_bootstrap(*pair, clusters)
        results[name] |= {"bootstrap_low": low, "bootstrap_high": high}
    return results
