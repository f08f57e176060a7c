"""Retries of an API model: several attempts at an item in one conversation, with feedback after a failure.

What else is reported of an evaluation is of first attempts alone, as if there were no retries.

Shapes: `n` items, `N` attempts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from agentrl_jax.evaluate.api_models.journal import Row
from agentrl_jax.evaluate.retry import READS_SUCCESS
from agentrl_jax.evaluate.statistics import (
    Clusters,
    cost_until_success,
    mean_interval,
    paired_interval,
    pass_at,
    success_interval,
)
from agentrl_jax.text.styles import FEEDBACK

_LINES = ("random", "null", "optimal")

_Kinds = Mapping[int, str] | None
"""The category of each item, which is its cluster; None for independent items."""


class _Attempts(NamedTuple):
    """What was reached and used within the first 1 to N attempts at each item."""

    items: list[int]
    answered: Bool[np.ndarray, " n"]
    """No reply of the first attempt was cut or withheld."""
    cut: Bool[np.ndarray, " n"]
    """A reply of a retry was, or the server refused the conversation."""
    success: Bool[np.ndarray, "n N"]
    turns: Int[np.ndarray, "n N"]
    written: Float[np.ndarray, "n N"]
    """Tokens; NaN where the server gave no number."""
    read: Float[np.ndarray, "n N"]


class _Control(NamedTuple):
    """Samples without feedback of the m items whose samples are all finished."""

    items: list[int]
    success: Bool[np.ndarray, "m k"]
    """A reply that was cut or withheld is a failure."""
    written: Float[np.ndarray, "m k"]


def summarize_retries(
    rows: Sequence[Row],
    replies: Sequence[Row],
    attempts: int,
    samples: int,
    lines: Callable[[int], Mapping[str, Any]],
    *,
    clusters: bool = False,
) -> dict[str, Any]:
    """Success and costs within 1 to `attempts` attempts, with items as unit of the intervals.

    `rows` are those of the finished episodes, `replies` those of their replies, and `lines` gives `ApiTask.lines` by
    the number of plays. With `clusters`, items of one category are one cluster, as in `summary.summarize`.

    Returns:
        feedback, the sentence; `note`, the footnote of the table; `cut`, the number of items with a retry in which a
        reply was cut or withheld, which ends the attempts without success. `attempts` has for each number of attempts:
        `retry_answered`, success over the items whose first attempt was answered (null if there is none), and
        `retry_all`, over all finished ones; `retry_turns`, `retry_tokens` (written) and `retry_tokens_read` of an item,
        over all, the tokens if the server gave their numbers. With several samples, at least as many as attempts:
        `pass_at_all`, success within as many samples without feedback, over the items whose samples are all finished,
        where a reply that was cut or withheld is a failure too; `difference`, paired, of `retry_all` and
        `pass_at_all`; and `pass_at_tokens` (written) up to the first success. `random`, `null` and `optimal`, if known
        for every number of plays, are success in at least one of as many independent plays.
    """
    retried = _attempts(rows, replies, attempts)
    control = _control(rows, replies, samples)
    drawn = [name for name in _LINES if name in lines(attempts)]
    kinds = {row["item"]: row["category"] for row in rows} if clusters else None
    points = {
        str(k): _of_retries(retried, k, kinds)
        | (_of_control(retried, control, k, kinds) if 1 < samples >= k else {})
        | {name: lines(k)[name] for name in drawn}
        for k in range(1, attempts + 1)
    }
    note = _note(attempts, samples, has_lines=bool(drawn))
    return {"feedback": FEEDBACK, "note": note, "cut": int(retried.cut.sum()), "attempts": points}


def split_replies(rows: Sequence[Row], replies: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """The replies of first attempts, and those of retries."""
    first = {(row["item"], row["sample"]): row["turns"] for row in rows}
    parts: tuple[list[Row], list[Row]] = ([], [])
    for reply in replies:
        parts[reply["turn"] >= first.get((reply["item"], reply["sample"]), np.inf)].append(reply)
    return parts


def _attempts(rows: Sequence[Row], replies: Sequence[Row], attempts: int) -> _Attempts:
    # Without retries the row of an episode is that of its only attempt.
    played = {row["item"]: row.get("attempts", [row]) for row in rows if row["sample"] == 0}
    steps = np.arange(attempts)
    answered, cut, success, turns = [], [], [], []
    for of_item in played.values():
        last = len(of_item) - 1  # only the last attempt can be solved or have a reply that was cut or withheld
        whole = of_item[-1]["status"] == "answered"
        # Leaving out items whose retries were cut would leave out failures alone: what is solved has no more retries.
        answered.append(whole or last > 0)
        cut.append(not whole and last > 0)
        success.append((steps >= last) & (whole and of_item[-1]["solved"]))
        turns.append(np.cumsum([attempt["turns"] for attempt in of_item])[np.minimum(steps, last)])
    shape = (len(played), attempts)
    used = np.array(turns, int).reshape(shape)
    usage = {(row["item"], row["turn"]): row["reply"] for row in replies if row["sample"] == 0}

    def tokens(name: str) -> Float[np.ndarray, "n N"]:
        sums = [
            np.cumsum([0.0, *(usage[item, turn].get(name, np.nan) for turn in range(of_item[-1]))])[of_item]
            for item, of_item in zip(played, used)
        ]
        return np.array(sums, float).reshape(shape)

    return _Attempts(
        list(played),
        np.array(answered, bool),
        np.array(cut, bool),
        np.array(success, bool).reshape(shape),
        used,
        tokens("completion_tokens"),
        tokens("prompt_tokens"),
    )


def _control(rows: Sequence[Row], replies: Sequence[Row], samples: int) -> _Control:
    finished = {(row["item"], row["sample"]): row for row in rows}
    items = dict.fromkeys(row["item"] for row in rows)
    whole = [item for item in items if all((item, sample) in finished for sample in range(samples))]
    written = dict.fromkeys(finished, 0.0)
    for reply in split_replies(rows, replies)[0]:
        if (key := (reply["item"], reply["sample"])) in written:
            written[key] += reply["reply"].get("completion_tokens", np.nan)
    shape = (len(whole), samples)
    keys = [(item, sample) for item in whole for sample in range(samples)]
    solved = [finished[key]["solved"] and finished[key]["status"] == "answered" for key in keys]
    return _Control(
        whole,
        np.array(solved, bool).reshape(shape),
        np.array([written[key] for key in keys], float).reshape(shape),
    )


def _of_retries(retried: _Attempts, k: int, kinds: _Kinds) -> dict[str, Any]:
    success, clusters = retried.success[:, k - 1], _clusters(retried.items, kinds)
    answered = np.flatnonzero(retried.answered)
    of_answered = _clusters([retried.items[i] for i in answered], kinds)

    def mean(values: np.ndarray) -> dict[str, float | int] | None:
        known = values.size and np.isfinite(values).all()
        return mean_interval(values, clusters=clusters) if known else None

    return {
        "retry_answered": success_interval(success[answered], clusters=of_answered) if answered.size else None,
        "retry_all": success_interval(success, clusters=clusters) if success.size else None,
        "retry_turns": mean(retried.turns[:, k - 1]),
        "retry_tokens": mean(retried.written[:, k - 1]),
        "retry_tokens_read": mean(retried.read[:, k - 1]),
    }


def _of_control(retried: _Attempts, control: _Control, k: int, kinds: _Kinds) -> dict[str, Any]:
    if not control.items:
        return {}
    independent, of_item = pass_at(control.success, k), dict(zip(retried.items, retried.success[:, k - 1]))
    clusters = _clusters(control.items, kinds)
    found = {
        "pass_at_all": success_interval(independent, clusters=clusters),
        "difference": paired_interval([of_item[item] for item in control.items], independent, clusters=clusters),
    }
    if np.isfinite(control.written).all():
        costs = cost_until_success(control.success, control.written, k)
        found["pass_at_tokens"] = mean_interval(costs, clusters=clusters)
    return found


def _clusters(items: Sequence[int], kinds: _Kinds) -> Clusters:
    return None if kinds is None else [kinds[item] for item in items]


def _note(attempts: int, samples: int, *, has_lines: bool) -> str:
    control = "pass@k here is as many attempts without feedback on the same items"
    if not 1 < samples >= attempts:
        upto = f", which were played up to {samples}" if samples > 1 else ", which were not played"
        needed = max(attempts, 2)
        control = f"its control is as many samples without feedback{upto}: give --samples {needed} for pass@k"
    lines = "Random, null and optimal play are the probability that one of k independent plays succeeds."
    if not has_lines:
        lines = "There are no random, null and optimal play by attempts, because only single plays of them are known."
    costs = "Replies that were cut or refused are failures. Tokens and turns are those up to the first success."
    return f"{READS_SUCCESS}; {control}. {costs} {lines}"
