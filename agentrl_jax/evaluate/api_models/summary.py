"""Rates of the episodes of an API model, from the rows of its journal."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.api_models.journal import Row
from agentrl_jax.evaluate.api_models.tasks import ApiTask
from agentrl_jax.evaluate.results import powers
from agentrl_jax.evaluate.selectors import Selector, success_of_best
from agentrl_jax.evaluate.statistics import mean_interval, pass_all, pass_at, success_interval

STATUSES = ("answered", "length", "refusal", "failed")
"""How an episode can end: all of its replies were carried out, one was cut by a limit of tokens or withheld, or the
server refused the conversation."""

_COUNTS = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens")


def summarize(
    task: ApiTask,
    rows: Sequence[Row],
    samples: int,
    unfinished: int,
    lines: Mapping[str, Any],
    *,
    clusters: bool = False,
) -> dict[str, Any]:
    """The part of the result of `evaluate_api` that follows from the rows of the finished episodes.

    With `clusters`, items of one category are one cluster of the intervals, except for those of `categories`, and a
    `ValueError` says that the items of the episodes have fewer than two categories.
    """
    answered = [row for row in rows if row["status"] == "answered"]
    result = _rates(rows, clusters)
    result["episodes"]["unfinished"] = unfinished
    result["episodes"]["asked"] += unfinished
    result |= {"score_answered": _interval(answered, "score", clusters), "full_score": task.full_score}
    if task.strict:
        result["strict_success_answered"] = _interval(answered, "strict", clusters)
    result |= lines
    if "optimal" in lines and (gap := lines["optimal"]["mean"] - lines["random"]["mean"]) > 0:
        for which in ("answered", "all"):
            success = result[f"success_{which}"]
            share = None if success is None else (success["mean"] - lines["random"]["mean"]) / gap
            result[f"gap_closed_{which}"] = share
    if samples > 1:
        result |= _passes(answered, samples, clusters)
    if task.category is not None:
        names = sorted({row["category"] for row in rows})
        result["categories"] = {name: _rates([row for row in rows if row["category"] == name]) for name in names}
    result["turns_used"] = float(np.mean([row["turns"] for row in answered])) if answered else None
    return result


def _rates(rows: Sequence[Row], clusters: bool = False) -> dict[str, Any]:
    """Numbers of episodes by status, and success over the answered ones and over all."""
    counts = collections.Counter(row["status"] for row in rows)
    solved = [row | {"solved": row["solved"] and row["status"] == "answered"} for row in rows]
    return {
        "episodes": {"asked": len(rows)} | {status: counts[status] for status in STATUSES},
        "success_answered": _interval([row for row in rows if row["status"] == "answered"], "solved", clusters),
        "success_all": _interval(solved, "solved", clusters),
    }


def outcomes_of(items: Sequence[int], rows: Sequence[Row], samples: int) -> dict[str, Any]:
    """The items, whether each sample of each solved it, None where it was not answered, and their categories."""
    solved = {(row["item"], row["sample"]): int(row["solved"]) for row in rows if row["status"] == "answered"}
    found: dict[str, Any] = {
        "items": list(items),
        "samples": [[solved.get((item, sample)) for sample in range(samples)] for item in items],
    }
    kinds = {row["item"]: row["category"] for row in rows if row.get("category") is not None}
    return found | ({"categories": [kinds[item] for item in items]} if kinds.keys() == set(items) else {})


def _interval(rows: Sequence[Row], name: str, clusters: bool = False) -> dict[str, float | int] | None:
    """The mean of a column over items, each the mean of its episodes; null without an episode."""
    of_item = collections.defaultdict[int, list[float]](list)
    for row in rows:
        of_item[row["item"]].append(float(row[name]))
    if not of_item:
        return None
    means = [float(np.mean(values)) for values in of_item.values()]
    interval = mean_interval if name == "score" else success_interval
    return interval(means, clusters=categories_of(rows, list(of_item)) if clusters else None)


def categories_of(rows: Sequence[Row], items: Sequence[int]) -> list[str]:
    """The category of each item, which has an episode among the rows."""
    kinds = {row["item"]: row["category"] for row in rows}
    return [kinds[item] for item in items]


def _whole(rows: Sequence[Row], samples: int) -> dict[int, list[Row]]:
    """The episodes of the items whose samples were all answered, in the order of the samples."""
    of_item = collections.defaultdict[int, list[Row]](list)
    for row in sorted(rows, key=lambda row: row["sample"]):
        if row["status"] == "answered":
            of_item[row["item"]].append(row)
    return {item: found for item, found in of_item.items() if len(found) == samples}


def _passes(answered: Sequence[Row], samples: int, clusters: bool) -> dict[str, Any]:
    """pass@k and pass^k over the items whose samples were all answered."""
    whole = _whole(answered, samples)
    if not whole:
        return {}
    solved = np.array([[row["solved"] for row in found] for found in whole.values()], bool)
    of_cluster = categories_of(answered, list(whole)) if clusters else None
    return {
        name: {str(k): success_interval(of(solved, k), clusters=of_cluster) for k in powers(samples)}
        for name, of in {"pass_at": pass_at, "pass_all": pass_all}.items()
    }


class BestOfReplies:
    """Takes one of k samples of an item, for several k: an API gives neither values nor comparable log-probabilities.

    oracle: one that succeeds (pass@k); shortest: the fewest written tokens; majority: the most frequent answer.
    """

    def __init__(self, selector: Selector, numbers: Sequence[int], task: ApiTask):
        """Raises a `UserError` if the selector needs what the task or an API does not have."""
        if selector in ("value", "logprob"):
            raise UserError.of(
                "--selector",
                selector,
                "which reads a run's own model; with --api expected one of oracle, shortest, majority",
            )
        if selector == "majority" and task.answer is None:
            raise UserError(
                f"--selector is majority, but episodes of {task.env} end without an answer in words, so that none is "
                "the most frequent; with --api expected one of oracle, shortest",
                key="--selector",
                value="majority",
            )
        self.selector, self.numbers, self._answer = selector, tuple(numbers), task.answer

    def rates(self, rows: Sequence[Row], replies: Sequence[Row], samples: int, *, clusters: bool) -> dict[str, Any]:
        """Returns the selector and `success` by the number of samples, over the items whose samples were all answered.

        `success` is empty if there is no such item. A `UserError` says that tokens were not counted.
        """
        whole = _whole(rows, samples)
        found: dict[str, Any] = {"selector": self.selector, "success": {}}
        if not whole:
            return found
        solved = np.array([[row["solved"] for row in episodes] for episodes in whole.values()], bool)
        of_episode = collections.defaultdict[tuple[int, int], list[Row]](list)
        for reply in sorted(replies, key=lambda row: row["turn"]):
            of_episode[reply["item"], reply["sample"]].append(reply["reply"])
        judged = [[self._judged(of_episode[item, sample]) for sample in range(samples)] for item in whole]
        of_cluster = categories_of(rows, list(whole)) if clusters else None
        for k in self.numbers:
            success = success_of_best(self.selector, solved, judged, k)
            found["success"][str(k)] = success_interval(success, clusters=of_cluster)
        return found

    def _judged(self, replies: list[Row]) -> Any:
        """What the selector reads of an episode: its answer, or its number of written tokens below 0."""
        if self._answer is not None and self.selector == "majority":
            return self._answer(replies[-1]["text"])
        if self.selector == "oracle":
            return None
        if any("completion_tokens" not in reply for reply in replies):
            raise UserError(
                "--selector is shortest, but the server did not count the tokens of every reply; give the same command "
                "with another selector, or without one: what was played is kept",
                key="--selector",
                value="shortest",
            )
        return -sum(reply["completion_tokens"] for reply in replies)


def tokens_of(replies: Sequence[Row]) -> dict[str, int]:
    """Returns the numbers of tokens of replies by kind, of replies, and of those whose tokens were not counted."""
    found = [row["reply"] for row in replies]
    sums = {name: sum(reply.get(name, 0) for reply in found) for name in _COUNTS}
    without = sum("prompt_tokens" not in reply or "completion_tokens" not in reply for reply in found)
    return sums | {"replies": len(found), "replies_without_usage": without}


def cost_of(replies: Sequence[Row], price_in: float | None, price_out: float | None) -> float | None:
    """The price of the replies whose numbers of tokens are known."""
    if price_in is None and price_out is None:
        return None
    tokens = tokens_of(replies)
    return (tokens["prompt_tokens"] * (price_in or 0.0) + tokens["completion_tokens"] * (price_out or 0.0)) / 1e6
