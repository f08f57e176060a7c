"""Evaluates an API model on the items of an environment."""

import collections
import contextlib
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_jax.environments.kinds import kind_of
from agentrl_jax.errors import UserError, refusals, shortened
from agentrl_jax.evaluate.api_models.client import ChatClient
from agentrl_jax.evaluate.api_models.journal import Journal, Row
from agentrl_jax.evaluate.api_models.level_task import level_task
from agentrl_jax.evaluate.api_models.play import Key, Played, Player, play_all
from agentrl_jax.evaluate.api_models.retries import split_replies, summarize_retries
from agentrl_jax.evaluate.api_models.service_task import service_task
from agentrl_jax.evaluate.api_models.summary import BestOfReplies, cost_of, outcomes_of, summarize, tokens_of
from agentrl_jax.evaluate.api_models.tasks import ApiTask, TaskOptions
from agentrl_jax.evaluate.selectors import Selector
from agentrl_jax.io import atomic_write
from agentrl_jax.services.catalog import success_rule
from agentrl_jax.services.screenshots import Screenshots, refuse_without

REPORTS = 20
"""Number of progress reports."""


def evaluate_api(
    model: str,
    base_url: str,
    options: TaskOptions,
    out: str | os.PathLike[str],
    *,
    key: str = "",
    temperature: float = 0.0,
    samples: int = 1,
    best_of: Sequence[int] = (),
    selector: Selector = "oracle",
    clusters: bool = False,
    plays: Sequence[int] = (),
    token_ids: bool = False,
    extra: Mapping[str, Any] | None = None,
    request_timeout: float = 120.0,
    retries: int = 8,
    price_in: float | None = None,
    price_out: float | None = None,
    by_attempts: bool = False,
    screenshots: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Lets the model behind an OpenAI-compatible API play each item `samples` times.

    The folder `out` gets every reply and episode at once, and the result as summary.json. The same call goes on after a
    kill and asks nothing twice; with more items or samples it plays those that are missing. `key` is sent as the bearer
    token and written nowhere. `token_ids` asks for the tokens of prompts and replies, as vLLM and `agentrl serve-model`
    give them. `extra` has further fields of every request; null leaves a usual one out. The prices are of a million
    tokens. With `options.attempts`, the first sample of each item goes on after a failure, see `retries`. For each
    number of `best_of`, `selector` takes one of so many samples of an item, which are played at least, see
    `summary.BestOfReplies`. With `clusters`, items of one category are one cluster of the intervals, except for those
    of the categories; random, null and optimal play have such intervals once every item has a finished episode. With
    `by_attempts`, there is a `retry` also of one attempt. `screenshots` keeps those that a service gives in `out`, too.

    Returns:
        model, base_url, env, style, turns, items, samples, temperature, max_tokens (of a reply, null without a limit),
        the last two as they were sent; `episodes`, numbers by status: asked, answered, length (a reply was cut by a
        limit of tokens), refusal, failed (the server refused the conversation, and why is not known), unfinished (no
        reply came in all attempts, or the environment failed). The same call asks again for the last two, whose reasons
        are in `unfinished`.
        `success_answered` is over the answered episodes, `success_all` over all but the unfinished ones, where a cut or
        withheld reply and a refused conversation mean that the item was not solved: the first is the model's on what it
        answered, the second a lower bound. Both are {mean, low, high, n} with items as unit, null without such an
        episode. `score_answered` is of the same form, out of `full_score`; with a stricter rule,
        `strict_success_answered` too. `random`, `null` and `optimal` success on the same items, as far as known, and
        `gap_closed_answered` and `gap_closed_all`, the shares
        of the difference between random and optimal play. With several samples, `pass_at` and `pass_all` over the
        items whose samples were all answered, and so is `best_of`. `outcomes`: the items, and `samples`, 1, 0 or null
        (not answered) of each item and sample. `levels`: hash of the first state of each item (`TextEpisode.level`),
        null before its first reply. For each number of `plays`, the success of random, null and optimal play
        in at least one of so many plays, by number as `plays`, as far as known. `categories`: episodes and both
        successes of each. `turns_used`, `tokens` (sums over all replies, and `replies_without_usage`), `cost` (null
        without prices), `requests` and `retried` of this call. With several attempts, all this but the last two is of
        first attempts alone, and `retry` is what `summarize_retries` describes, with `tokens` and `cost` of the replies
        after first attempts.

    Raises:
        UserError: an option cannot be used, also for want of categories or of answers in words, `out` holds another
            evaluation or one of other levels, or the server refuses a request for good.
    """
    body = {"temperature": temperature, "max_tokens": options.max_tokens}
    body |= {"return_token_ids": True} if token_ids else {}
    body |= dict(extra or {})
    limit = _limit(body)
    if screenshots and options.attempts > 1:
        raise UserError(
            "--screenshots keeps those of one attempt at an item, but --attempts allows more; leave one out",
            key="--screenshots",
        )
    taken = Screenshots(out) if screenshots else None
    options = dataclasses.replace(options, screenshots=taken, max_tokens=options.max_tokens if limit is None else limit)
    with _task(options) as task:
        if clusters and task.category is None:
            raise UserError(
                f"--clusters needs items with categories, but those of {task.env} have none; leave it out",
                key="--clusters",
            )
        best = BestOfReplies(selector, best_of, task) if best_of else None
        samples = max(samples, *best_of) if best_of else samples
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
        columns = {"strict": task.strict, "category": task.category is not None, "attempts": options.attempts > 1}
        columns_needed = [name for name, needed in columns.items() if needed]
        with Journal(out, settings, columns_needed) as journal, contextlib.closing(client):
            client.replied = bool(journal.replies)
            _check_levels(task, journal)
            player = Player(
                task=task,
                client=client,
                journal=journal,
                seed=options.seed,
                token_ids=token_ids,
                attempts=options.attempts,
            )
            played = _play(player, samples, options.concurrency, report)
            episodes, items = journal.episodes | played.refused, set(task.items)
            if taken is not None:
                report(taken.summary())
                without = sum(taken.lacks(item, sample + 1) for item, sample in episodes)
                if without:
                    report(f"{without} finished episodes have none; what was played without --screenshots stays so")
            rows = [row for (item, sample), row in episodes.items() if item in items and sample < samples]
            replies = [row for row in journal.replies.values() if row["item"] in items and row["sample"] < samples]
        report("random, null and optimal play on the same items")
        result: dict[str, Any] = {name: settings[name] for name in ("model", "base_url", "env", "style", "turns")}
        result |= {
            "success_rule": success_rule(task.env),
            "items": len(task.items),
            "samples": samples,
            "temperature": body.get("temperature"),
        }
        result["max_tokens"] = limit
        result["outcomes"] = outcomes_of(task.items, rows, samples) | task.item_lines()
        of_items = result["outcomes"].get("categories") if clusters else None
        lines = functools.partial(task.lines, clusters=of_items)
        begun = {(row["item"], row["sample"]): row.get("level") for row in replies if row["turn"] == 0}
        result["levels"] = [begun.get((item, 0)) for item in task.items]
        first, later = split_replies(rows, replies)
        result |= {"tokens": tokens_of(first), "cost": cost_of(first, price_in, price_out)}
        with refusals("--clusters"):
            result |= summarize(task, rows, samples, len(played.unfinished), lines(1), clusters=clusters)
            result |= {"plays": {str(k): lines(k) for k in plays}} if plays else {}
            if best is not None:
                result["best_of"] = best.rates(rows, first, samples, clusters=clusters)
            if options.attempts > 1 or by_attempts:
                found = summarize_retries(rows, replies, options.attempts, samples, lines, clusters=clusters)
                result["retry"] = found | {"tokens": tokens_of(later), "cost": cost_of(later, price_in, price_out)}
    result |= {"requests": client.requests, "retried": client.retried}
    why = played.unfinished | {key: row["refused"] for key, row in played.refused.items()}
    result |= {"unfinished": {f"item {item}, sample {sample}": reason for (item, sample), reason in why.items()}}
    with atomic_write(Path(out) / "summary.json") as stream:
        json.dump(result, stream, indent=1, allow_nan=False)
    return result


def _limit(body: Mapping[str, Any]) -> int | None:
    """Maximum number of tokens of a reply that the body of every request asks for; None for no limit."""
    for name in ("max_completion_tokens", "max_tokens"):
        if (limit := body.get(name)) is not None:
            if type(limit) is not int or limit < 1:
                raise UserError.of(f"{name}", limit, "expected a positive integer, or null for no limit")
            return limit
    return None


@contextlib.contextmanager
def _task(options: TaskOptions) -> Iterator[ApiTask]:
    """The task in the style that is asked for."""
    with refusals():
        success_rule(options.env)  # refuses the name of no environment
    has_items = kind_of(options.env, "" if options.url == "local" else options.url).has_items
    if options.screenshots is not None and not has_items:
        refuse_without(options.env)
    levels = not has_items and options.style != "chat"
    if not levels and options.style not in ("auto", "chat"):
        raise UserError.of("--style", options.style, f"but {options.env} is played as a service; leave it out")
    if levels:
        yield level_task(dataclasses.replace(options, style="ragen") if options.style == "auto" else options)
    else:
        with service_task(options) as task:
            yield task


def _play(player: Player, samples: int, concurrency: int, report: Callable[[str], None]) -> Played:
    """Plays what the journal lacks, and closes the client."""
    wanted = [(item, sample) for item in player.task.items for sample in range(samples)]
    finished = player.journal.episodes
    left = [key for key in wanted if key not in finished]
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

    return play_all(player.play, left, concurrency, done, client)


def _check_levels(task: ApiTask, journal: Journal) -> None:
    """Raises a `UserError` if an item was played before on another level than it has now."""
    if task.level is None:
        return
    items = set(task.items)
    begun = [row for row in journal.replies.values() if row["turn"] == 0 and row["item"] in items]
    for item, level in sorted({(row["item"], row["level"]) for row in begun if "level" in row}):
        if level != task.level(item):
            raise UserError.at(
                journal.folder,
                f"item {item} was played on another level than it has now; give the levels of {task.env} that it had, "
                "or another --out",
                item,
            )


def read_key(variable: str, *, required: bool) -> str:
    """The key in an environment variable; empty if it is not set, which is a `UserError` if it is `required`."""
    key = os.environ.get(variable, "").strip()
    if not key and required:
        raise UserError.of("--key_variable", variable, "but no such variable is set; set it to the key")
    if not key.isascii() or not key.isprintable() or " " in key:
        raise UserError(
            f"the variable {shortened(variable)} holds no key; expected printable ASCII without blanks", key=variable
        )
    return key
