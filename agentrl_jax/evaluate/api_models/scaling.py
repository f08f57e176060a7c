"""Test-time scaling of an API model: its success by turns, tokens of a reply, samples and retries."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.api_models.evaluate import evaluate_api
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.evaluate.results import gap_closed
from agentrl_jax.evaluate.scaling import check_axes
from agentrl_jax.evaluate.selectors import Selector
from agentrl_jax.evaluate.statistics import Clusters, pass_all, pass_at, success_interval

_LIMITS = {"turns": "turns", "tokens": "max_tokens"}
"""Field of `TaskOptions` of an axis that limits episodes."""
_KEPT = (
    *("success_answered", "success_all", "gap_closed_all"),
    *("null", "random", "optimal", "optimal_is", "baseline_turns"),
)


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
    a folder below `out`, such as turns-5, and so are samples and attempts together; the same call goes on after a kill,
    and one with further numbers plays what is missing. Only another largest number of attempts needs new episodes. A
    limit of tokens in `extra` is replaced by each number of `tokens`. `selector` also takes the best of k samples, see
    `summary.BestOfReplies`. `call` are the model, its address, and what else `evaluate_api` takes.

    Returns:
        run (the model), env, episodes (items), seed (null for the usual one), temperature, `unfinished` (their number
        in all evaluations, which the same call asks for again) and `axes`, with a list for each axis that was given. A
        point of turns or tokens has this number, `success_answered`, `success_all`, `gap_closed_all`, and random, null
        and optimal play within these limits, as `evaluate_api` describes them, with `mean_turns` of an answered
        episode, `mean_tokens`, written in an episode, and `tokens_read` and `tokens_written`, the sums over all
        replies. A point of samples has `pass_at`, `pass_all` and with a selector `best_of`, over the items whose
        samples were all answered (null without one), and `mean_turns` and `mean_tokens` of all k samples. A point of
        attempts has what `summarize_retries` describes. Both have the same three lines of k plays, as far as known, and
        `gap_closed` by `pass_at` or `retry_all`. Means are null where the server did not count all tokens, or
        episodes are unfinished.

    Raises:
        UserError: no axis is given, a number is not usable, or as in `evaluate_api`.
    """
    limits = {"turns": turns, "tokens": tokens}
    check_axes(limits | {"samples": samples, "attempts": attempts}, selector)
    extra = call.get("extra") or {}
    own = _limit_in(extra) if tokens else None
    axes: dict[str, list[dict[str, Any]]] = {axis: [] for axis in ("turns", "tokens") if limits[axis]}
    unfinished = 0
    found: Mapping[str, Any] = {}
    retry: Mapping[str, Any] = {}
    if samples or attempts:  # first, because a selector may be refused
        most = max((1, *attempts))
        report(f"samples and attempts: {max((1, *samples))} and {most}")
        best: dict[str, Any] = {} if selector is None else {"best_of": samples, "selector": selector}
        found = evaluate_api(
            options=dataclasses.replace(options, attempts=most),
            out=Path(out) / (f"attempts-{most}" if most > 1 else "samples"),
            samples=max((1, *samples)),
            plays=sorted({*samples, *attempts}),
            by_attempts=bool(attempts),
            report=report,
            **best,
            **call,
        )
        unfinished += len(found["unfinished"])
        clusters = found["outcomes"].get("categories") if call.get("clusters") else None
        axes |= {"samples": [_of_samples(found, k, clusters) for k in samples]} if samples else {}
        axes |= {"attempts": [_of_attempts(found, k) for k in attempts]} if attempts else {}
        retry = found.get("retry", {})
    for axis, numbers in limits.items():
        for number in numbers:
            report(f"{axis} {number}")
            changed: dict[str, Any] = {_LIMITS[axis]: number}
            asked = call | ({"extra": {**extra, own: number}} if axis == "tokens" and own else {})
            folder = Path(out) / f"{axis}-{number}"
            found = evaluate_api(options=dataclasses.replace(options, **changed), out=folder, report=report, **asked)
            axes[axis].append({axis: number, **_of_limit(found)})
            unfinished += len(found["unfinished"])
    named = {"run": found["model"], "env": found["env"], "episodes": found["items"], "seed": options.seed}
    named |= {"temperature": found["temperature"], "unfinished": unfinished}
    named |= {"selector": selector} if selector is not None else {}
    if retry:
        named["retry"] = {name: value for name, value in retry.items() if name != "attempts"}
    return named | {"trained": {}, "axes": axes}


def _limit_in(extra: Mapping[str, Any]) -> str | None:
    """The name of the limit of tokens among further fields of requests; None if the usual one is sent."""
    names = ("max_completion_tokens", "max_tokens")
    if (own := next((name for name in names if extra.get(name) is not None), None)) is None and "max_tokens" in extra:
        raise UserError(
            "--tokens needs a limit of tokens in every request, but --extra leaves max_tokens out; name another one, "
            'such as "max_completion_tokens": 512, in whose place each number is sent',
            key="--tokens",
        )
    return own


def _of_limit(found: Mapping[str, Any]) -> dict[str, Any]:
    sums = {"tokens_read": "prompt_tokens", "tokens_written": "completion_tokens"}
    kept = {name: found[name] for name in _KEPT if name in found}
    return kept | _used(found, 1) | {name: found["tokens"][counted] for name, counted in sums.items()}


def _used(found: Mapping[str, Any], samples: int) -> dict[str, float | None]:
    """Mean turns and written tokens of so many episodes."""
    episodes, tokens = found["episodes"], found["tokens"]
    counted = not (episodes["unfinished"] or tokens["replies_without_usage"])
    turns = found["turns_used"]
    return {
        "mean_turns": None if turns is None else samples * turns,
        "mean_tokens": samples * tokens["completion_tokens"] / episodes["asked"] if counted else None,
    }


def _gap(success: Mapping[str, Any] | None, lines: Mapping[str, Any]) -> dict[str, float | None]:
    if success is None or not {"random", "optimal"} <= lines.keys():
        return {}
    return {"gap_closed": gap_closed(success["mean"], lines["random"]["mean"], lines["optimal"]["mean"])}


def _of_samples(found: Mapping[str, Any], k: int, clusters: Clusters) -> dict[str, Any]:
    rows = found["outcomes"]["samples"]
    whole = [number for number, row in enumerate(rows) if None not in row]
    solved = np.array([rows[number] for number in whole], bool)
    of_whole = None if clusters is None else [clusters[number] for number in whole]
    point: dict[str, Any] = {"samples": k}
    for name, of in {"pass_at": pass_at, "pass_all": pass_all}.items():
        point[name] = success_interval(of(solved, k), clusters=of_whole) if whole else None
    if "best_of" in found:
        point["best_of"] = found["best_of"]["success"].get(str(k))
    lines = found["plays"][str(k)]
    return point | _used(found, k) | lines | _gap(point["pass_at"], lines)


def _of_attempts(found: Mapping[str, Any], k: int) -> dict[str, Any]:
    point = found["retry"]["attempts"][str(k)]
    return {"attempts": k, **point, **_gap(point["retry_all"], point)}
