"""Test-time scaling of an API model: its success by turns, tokens of a reply, samples and retries."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.evaluate.scaling import check_axes
from agentrl_jax.evaluate.selectors import Selector
from agentrl_jax.evaluate.statistics import pass_all, pass_at, success_interval

_LIMITS = {"turns": "turns", "tokens": "max_tokens"}
"""Field of `TaskOptions` of an axis that limits episodes."""
_KEPT = ("success_answered", "success_all", "random", "null", "optimal", "optimal_is", "gap_closed_all", "turns_used")


def scale_api(
    options: TaskOptions,
    out: str | os.PathLike[str],
    *,
    turns: Sequence[int] = (),
    tokens: Sequence[int] = (),
    samples: Sequence[int] = (),
    attempts: Sequence[int] = (),
    selector: Selector | None = None,
    report: Callable[[str], None] = lambda line: None,
    **call: Any,
) -> dict[str, Any]:
    """Evaluates an API model with other limits of turns and of tokens, with several samples, and with retries.

    One budget changes at a time, on the same items; the others are those of `options`. Every limit is an evaluation in
    a folder below `out`, such as turns-5, and so are samples and attempts together; the same call goes on after a kill.
    `selector` also takes the best of k samples, see `summary.BestOfReplies`. `call` are the model, its address, and
    what else `evaluate_api` takes.

    Returns:
        run (the model), env, episodes (items), seed, temperature, `unfinished` (their number in all evaluations, which
        the same call asks for again) and `axes`, with a list for each axis that was given. A point of turns or tokens
        has this number, `success_answered`, `success_all`, and random, null and optimal play within these limits, as
        `evaluate_api` describes them, with `tokens_read` and `tokens_written`, the sums over all replies. A point of
        samples has `pass_at`, `pass_all` and with a selector `best_of`, over the items whose samples were all answered
        (null without one). A point of attempts has what `summarize_retries` describes; both have the same three lines
        of k plays.

    Raises:
        UserError: no axis is given, a number is not usable, or as in `evaluate_api`.
    """
    limits = {"turns": turns, "tokens": tokens}
    check_axes(limits | {"samples": samples, "attempts": attempts}, selector)
    axes: dict[str, list[dict[str, Any]]] = {}
    unfinished = 0
    found: Mapping[str, Any] = {}
    for axis, numbers in limits.items():
        points = []
        for number in numbers:
            report(f"{axis} {number}")
            changed: dict[str, Any] = {_LIMITS[axis]: number}
            limited = dataclasses.replace(options, **changed)
            found = evaluate_api(options=limited, out=Path(out) / f"{axis}-{number}", report=report, **call)
            points.append({axis: number, **_of_limit(found)})
            unfinished += found["episodes"]["unfinished"]
        axes |= {axis: points} if points else {}
    if samples or attempts:
        report("samples and attempts")
        several = dataclasses.replace(options, attempts=max((1, *attempts)))
        best: dict[str, Any] = {} if selector is None else {"best_of": samples, "selector": selector}
        most = max((1, *samples))
        folder = Path(out) / "-".join(["samples"] * bool(samples) + ["attempts"] * bool(attempts))
        found = evaluate_api(options=several, out=folder, samples=most, plays=samples, report=report, **best, **call)
        unfinished += found["episodes"]["unfinished"]
        axes |= {"samples": [_of_samples(found, k) for k in samples]} if samples else {}
        axes |= {"attempts": [_of_attempts(found, k) for k in attempts]} if attempts else {}
    named = {"run": found["model"], "env": found["env"], "episodes": found["items"], "seed": options.seed}
    named |= {"temperature": found["temperature"], "unfinished": unfinished}
    named |= {"selector": selector} if selector is not None else {}
    if "retry" in found:
        named["retry"] = {name: value for name, value in found["retry"].items() if name != "attempts"}
    return named | {"trained": {}, "axes": axes}


def _of_limit(found: Mapping[str, Any]) -> dict[str, Any]:
    sums = {"tokens_read": "prompt_tokens", "tokens_written": "completion_tokens"}
    kept = {name: found[name] for name in _KEPT if name in found}
    return kept | {name: found["tokens"][counted] for name, counted in sums.items()}


def _of_samples(found: Mapping[str, Any], k: int) -> dict[str, Any]:
    whole = [row for row in found["outcomes"]["samples"] if None not in row]
    solved = np.array(whole, bool)
    point: dict[str, Any] = {"samples": k}
    for name, of in {"pass_at": pass_at, "pass_all": pass_all}.items():
        point[name] = success_interval(of(solved, k)) if whole else None
    if "best_of" in found:
        point["best_of"] = found["best_of"]["success"].get(str(k))
    return point | found["plays"][str(k)]


def _of_attempts(found: Mapping[str, Any], k: int) -> dict[str, Any]:
    """One attempt without any retries is the first sample."""
    if "retry" in found:
        return {"attempts": k, **found["retry"]["attempts"][str(k)]}
    return {"attempts": k, "retry_answered": found["success_answered"], "retry_all": found["success_all"]}
