"""Evaluates an API model on the items of an environment."""

import collections
import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_jax.errors import UserError, shortened
from agentrl_jax.evaluate.api_models.client import ChatClient
from agentrl_jax.evaluate.api_models.journal import Journal, Row
from agentrl_jax.evaluate.api_models.level_task import level_task
from agentrl_jax.evaluate.api_models.play import Key, Player, play_all
from agentrl_jax.evaluate.api_models.retries import split_replies, summarize_retries
from agentrl_jax.evaluate.api_models.service_task import service_task
from agentrl_jax.evaluate.api_models.tasks import ApiTask, TaskOptions
from agentrl_jax.evaluate.results import powers
from agentrl_jax.evaluate.statistics import mean_interval, pass_all, pass_at, success_interval
from agentrl_jax.io import atomic_write
from envs_jax.registry import registered

STATUSES = ("answered", "length", "refusal")
"""How an episode can end: all of its replies were carried out, or one was cut by a limit of tokens or withheld."""

REPORTS = 20
"""Number of progress reports."""

_COUNTS = ("prompt_tokens", "completion_tokens", "reasoning_tokens", "cached_tokens")


def evaluate_api(
    model: str,
    base_url: str,
    options: TaskOptions,
    out: str | os.PathLike[str],
    *,
    key: str = "",
    temperature: float = 0.0,
    samples: int = 1,
    token_ids: bool = False,
    extra: Mapping[str, Any] | None = None,
    request_timeout: float = 120.0,
    retries: int = 8,
    price_in: float | None = None,
    price_out: float | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Lets the model behind an OpenAI-compatible API play each item `samples` times.

    The folder `out` gets every reply and episode at once, and the result as summary.json. The same call goes on after a
    kill and asks nothing twice; with more items or samples it plays those that are missing. `key` is sent as the bearer
    token and written nowhere. `token_ids` asks for the tokens of prompts and replies, as vLLM and `agentrl serve-model`
    give them. `extra` has further fields of every request; null leaves a usual one out. The prices are of a million
    tokens. With `options.attempts`, the first sample of each item goes on after a failure, see `retries`.

    Returns:
        model, base_url, env, style, turns, items, samples, temperature; `episodes`, numbers by status: asked, answered,
        length (a reply was cut by a limit of tokens), refusal, unfinished (no reply came in all attempts, or the
        environment failed; asked again by the same call).
        `success_answered` is over the answered episodes, `success_all` over all finished ones, where a cut or withheld
        reply means that the item was not solved: the first is the model's on what it answered, the second a lower
        bound. Both are {mean, low, high, n} with items as unit, null without such an episode. `score_answered` is of
        the same form, out of `full_score`; with a stricter rule, `strict_success_answered` too. `random`, `null` and
        `optimal` success on the same items, as far as known, and `gap_closed_answered` and `gap_closed_all`, the shares
        of the difference between random and optimal play. With several samples, `pass_at` and `pass_all` over the
        items whose samples were all answered. `outcomes`: the items, and `samples`, 1, 0 or null (not answered) of each
        item and sample. `categories`: episodes and both successes of each. `turns_used`, `tokens`
        (sums over all replies, and `replies_without_usage`), `cost` (null without prices), `requests` and `retried` of
        this call. With several attempts, all this but the last two is of first attempts alone, and `retry` is what
        `summarize_retries` describes, with `tokens` and `cost` of the replies after first attempts.

    Raises:
        UserError: an option cannot be used, `out` holds another evaluation, or the server refuses a request for good.
    """
    body = {"temperature": temperature, "max_tokens": options.max_tokens}
    body |= {"return_token_ids": True} if token_ids else {}
    body |= dict(extra or {})
    with _task(options) as task:
        settings = {"model": model, "base_url": base_url, "env": task.env, "style": task.style, "turns": task.turns}
        settings |= {"body": body, "seed": options.seed} | task.facts
        settings |= {"attempts": options.attempts} if options.attempts > 1 else {}
        client = ChatClient(
            base_url,
            model,
            key=key,
            options=body,
            seconds=request_timeout,
            retries=retries,
            connections=options.concurrency,
        )
        with Journal(out, settings) as journal, contextlib.closing(client):
            player = Player(
                task=task,
                client=client,
                journal=journal,
                seed=options.seed,
                token_ids=token_ids,
                attempts=options.attempts,
            )
            failed = _play(player, samples, options.concurrency, report)
            rows = [row for (item, sample), row in journal.episodes.items() if item in task.items and sample < samples]
            replies = [row for row in journal.replies.values() if row["item"] in task.items and row["sample"] < samples]
        report("random, null and optimal play on the same items")
        result: dict[str, Any] = {name: settings[name] for name in ("model", "base_url", "env", "style", "turns")}
        result |= {"items": len(task.items), "samples": samples, "temperature": body.get("temperature")}
        result |= summarize(task, rows, samples, len(failed), task.lines(1))
        result["outcomes"] = _outcomes(task.items, rows, samples)
        first, later = split_replies(rows, replies)
        result |= {"tokens": _tokens(first), "cost": _cost(first, price_in, price_out)}
        if options.attempts > 1:
            found = summarize_retries(rows, replies, options.attempts, samples, task.lines)
            result["retry"] = found | {"tokens": _tokens(later), "cost": _cost(later, price_in, price_out)}
    result |= {"requests": client.requests, "retried": client.retried}
    result |= {"unfinished": {f"item {item}, sample {sample}": why for (item, sample), why in failed.items()}}
    with atomic_write(Path(out) / "summary.json") as stream:
        json.dump(result, stream, indent=1, allow_nan=False)
    return result


@contextlib.contextmanager
def _task(options: TaskOptions) -> Iterator[ApiTask]:
    """The task in the style that is asked for."""
    levels = options.env in registered() and options.url == "local" and options.style != "chat"
    if not levels and options.style not in ("auto", "chat"):
        raise UserError(f"--style is {options.style}, but {options.env} is played as a service; leave it out")
    if levels:
        yield level_task(dataclasses.replace(options, style="ragen") if options.style == "auto" else options)
    else:
        with service_task(options) as task:
            yield task


def _play(player: Player, samples: int, concurrency: int, report: Callable[[str], None]) -> dict[Key, str]:
    """Plays what the journal lacks; returns why some episodes could not be finished."""
    wanted = [(item, sample) for item in player.task.items for sample in range(samples)]
    left = [key for key in wanted if key not in player.journal.episodes]
    task, client = player.task, player.client
    before = f", {len(wanted) - len(left)} of them played before" if len(left) < len(wanted) else ""
    retries = f", up to {player.attempts} attempts at each item" if player.attempts > 1 else ""
    report(f"{len(wanted)} episodes of {task.env}{before}, at most {task.turns} turns each{retries}")
    counts: collections.Counter[str] = collections.Counter()

    def done(key: Key, row: Row | None) -> None:
        counts["unfinished" if row is None else row["status"]] += 1
        if counts.total() % max(1, len(left) // REPORTS) == 0 or counts.total() == len(left):
            numbers = ", ".join(f"{number} {status}" for status, number in counts.items())
            again = f" ({client.retried} again)" if client.retried else ""
            report(f"{counts.total()} of {len(left)} episodes: {numbers}; {client.requests} requests{again}")

    return play_all(player.play, left, concurrency, done)


def summarize(
    task: ApiTask, rows: Sequence[Row], samples: int, unfinished: int, lines: Mapping[str, Any]
) -> dict[str, Any]:
    """The part of the result of `evaluate_api` that follows from the rows of the finished episodes."""
    answered = [row for row in rows if row["status"] == "answered"]
    result = _rates(rows)
    result["episodes"]["unfinished"] = unfinished
    result["episodes"]["asked"] += unfinished
    result |= {"score_answered": _interval(answered, "score"), "full_score": task.full_score}
    if task.strict:
        result["strict_success_answered"] = _interval(answered, "strict")
    result |= lines
    if "optimal" in lines and (gap := lines["optimal"]["mean"] - lines["random"]["mean"]) > 0:
        for which in ("answered", "all"):
            success = result[f"success_{which}"]
            share = None if success is None else (success["mean"] - lines["random"]["mean"]) / gap
            result[f"gap_closed_{which}"] = share
    if samples > 1:
        result |= _passes(answered, samples)
    if task.category is not None:
        names = sorted({row["category"] for row in rows})
        result["categories"] = {name: _rates([row for row in rows if row["category"] == name]) for name in names}
    result["turns_used"] = float(np.mean([row["turns"] for row in answered])) if answered else None
    return result


def _rates(rows: Sequence[Row]) -> dict[str, Any]:
    """Numbers of episodes by status, and success over the answered ones and over all."""
    counts = collections.Counter(row["status"] for row in rows)
    solved = [row | {"solved": row["solved"] and row["status"] == "answered"} for row in rows]
    return {
        "episodes": {"asked": len(rows)} | {status: counts[status] for status in STATUSES},
        "success_answered": _interval([row for row in rows if row["status"] == "answered"], "solved"),
        "success_all": _interval(solved, "solved"),
    }


def _outcomes(items: Sequence[int], rows: Sequence[Row], samples: int) -> dict[str, Any]:
    """The items, whether each sample of each solved it, None where it was not answered, and their categories."""
    solved = {(row["item"], row["sample"]): int(row["solved"]) for row in rows if row["status"] == "answered"}
    found: dict[str, Any] = {
        "items": list(items),
        "samples": [[solved.get((item, sample)) for sample in range(samples)] for item in items],
    }
    kinds = {row["item"]: row["category"] for row in rows if row.get("category") is not None}
    return found | ({"categories": [kinds[item] for item in items]} if kinds.keys() == set(items) else {})


def _interval(rows: Sequence[Row], name: str) -> dict[str, float | int] | None:
    """The mean of a column over items, each the mean of its episodes; null without an episode."""
    of_item = collections.defaultdict[int, list[float]](list)
    for row in rows:
        of_item[row["item"]].append(float(row[name]))
    if not of_item:
        return None
    means = [float(np.mean(values)) for values in of_item.values()]
    return mean_interval(means) if name == "score" else success_interval(means)


def _passes(answered: Sequence[Row], samples: int) -> dict[str, Any]:
    """pass@k and pass^k over the items whose samples were all answered."""
    of_item = collections.defaultdict[int, list[bool]](list)
    for row in answered:
        of_item[row["item"]].append(row["solved"])
    whole = np.array([outcomes for outcomes in of_item.values() if len(outcomes) == samples], bool)
    if not whole.size:
        return {}
    kinds = {"pass_at": pass_at, "pass_all": pass_all}
    return {name: {str(k): success_interval(of(whole, k)) for k in powers(samples)} for name, of in kinds.items()}


def _tokens(replies: Sequence[Row]) -> dict[str, int]:
    found = [row["reply"] for row in replies]
    sums = {name: sum(reply.get(name, 0) for reply in found) for name in _COUNTS}
    without = sum("prompt_tokens" not in reply or "completion_tokens" not in reply for reply in found)
    return sums | {"replies": len(found), "replies_without_usage": without}


def _cost(replies: Sequence[Row], price_in: float | None, price_out: float | None) -> float | None:
    """The price of the replies whose numbers of tokens are known."""
    if price_in is None and price_out is None:
        return None
    tokens = _tokens(replies)
    return (tokens["prompt_tokens"] * (price_in or 0.0) + tokens["completion_tokens"] * (price_out or 0.0)) / 1e6


def read_key(variable: str, *, required: bool) -> str:
    """The key in an environment variable; empty if it is not set, which is a `UserError` if it is `required`."""
    key = os.environ.get(variable, "").strip()
    if not key and required:
        raise UserError(f"--key_variable is {variable}, but no such variable is set; set it to the key")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(f"the variable {shortened(variable)} holds no key; expected printable ASCII without blanks")
    return key
