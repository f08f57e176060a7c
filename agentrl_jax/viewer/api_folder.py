"""Reads the folder of an API model's evaluation (`agentrl eval --api ... --out FOLDER`), as episodes to look at.

`settings.json` says what was asked, `replies.jsonl` has a row for every reply with the messages before it, and
`episodes.jsonl` one for every finished episode. An evaluation that goes on or was killed can be read as well.

The text is a model's and is not trusted: sizes are limited, nothing in it is executed, and text that is no Unicode text
is replaced. The address of the API is left out, because a page may be passed on.
"""

import collections
import contextlib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from agentrl_jax.errors import UserError, shortened
from agentrl_jax.strict_json import finite
from agentrl_jax.viewer.imported import MAX_EPISODES, ImportedEpisode, LogMessage, Report, Scalar, clean, to_float
from agentrl_jax.viewer.log_files import Unusable, parse, read_limited

FILES = SETTINGS, REPLIES, EPISODES, SUMMARY = "settings.json", "replies.jsonl", "episodes.jsonl", "summary.json"
MAX_BYTES = 2**29
"""Largest file that is read: 512 MiB; rows can have the numbers of all tokens."""
MAX_LOGPROBS = 100_000
"""Tokens of one reply with a log-probability that are shown."""

Row = dict[str, Any]
Key = tuple[int, int]
"""Item and sample."""

_ENDS = {"length": "cut", "refusal": "refused"}
"""Outcomes of episodes by the status of their row."""
_CUT = "cut by a limit of tokens"
_LEVEL = re.compile("[0-9a-f]{16}")


class ApiFolder(NamedTuple):
    """What the folder holds."""

    episodes: list[ImportedEpisode]
    """By item and sample."""
    about: str
    """What was evaluated, in words."""
    settings: Row
    """What was asked, and of which model."""


def is_api_folder(path: str | os.PathLike[str]) -> bool:
    """Whether a path is such a folder."""
    return (Path(path) / REPLIES).is_file()


def load_api_folder(path: str | os.PathLike[str], report: Report) -> ApiFolder:
    """Reads the folder; `report` gets a line about rows that cannot be read, which are left out.

    Raises:
        UserError: a file is missing or too large, or there is no reply yet.
    """
    folder = Path(path)
    settings = _object(folder / SETTINGS)
    redact = _redaction(_text(settings.get("base_url")))
    replies: dict[Key, dict[int, Row]] = collections.defaultdict(dict)
    for row in _rows(folder / REPLIES, report):
        if type(turn := row.get("turn")) is int and isinstance(row.get("reply"), dict):
            for name in ("prompt_token_ids", "token_ids"):  # large, and not shown
                row["reply"].pop(name, None)
            replies[_key(row)][turn] = row
    finished = {_key(row): row for row in _rows(folder / EPISODES, report)} if (folder / EPISODES).exists() else {}
    if not replies:
        raise UserError.at(folder, "has no reply yet; wait for the first one")
    if len(replies) > MAX_EPISODES:
        raise UserError.at(folder, f"has more than {MAX_EPISODES} episodes; evaluate fewer items in one folder")
    why = {name: redact(str(reason)) for name, reason in _unfinished(folder).items()}
    for row in (row for of_episode in replies.values() for row in of_episode.values()):
        if refusal := _text(row["reply"].get("refusal")):  # may be what the server said of an error
            row["reply"]["refusal"] = redact(refusal)
    episodes = [_episode(key, replies[key], finished.get(key), why, settings) for key in sorted(replies)]
    return ApiFolder(episodes, _about(settings, episodes), settings)


def _rows(file: Path, report: Report) -> Iterator[Row]:
    """The rows that name an item and a sample; a last line that is not complete yet is none."""
    content = read_limited(file, MAX_BYTES)
    bad = 0
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        try:
            row = parse(line)
        except Unusable:
            row = None
        if isinstance(row, dict) and all(type(row.get(name)) is int for name in ("item", "sample")):
            yield row
        else:
            bad += 1
    if bad:
        report(f"{file}: {bad} lines are no rows; left out")


def _object(file: Path) -> Row:
    try:
        found = parse(read_limited(file, MAX_BYTES))
    except Unusable as error:
        raise UserError.at(file, f"{error}; restore a copy, or evaluate again into another folder") from error
    return found if isinstance(found, dict) else {}


def _redaction(base_url: str) -> Callable[[str], str]:
    """What replaces an API's address in a text by "API", however a client or a server writes it.

    Clients write host and scheme in lower case and leave out the port that a scheme implies, certificates name the
    host alone, and a redirect may lead to another scheme.
    """
    address = base_url.rstrip("/")
    if not address:
        return lambda text: text
    written = [re.escape(address)]
    with contextlib.suppress(httpx.InvalidURL, ValueError):
        url = httpx.URL(address)
        hosts = {url.host, url.raw_host.decode("ascii"), f"[{url.host}]"} - {"", "[]"}
        paths = {url.path.rstrip("/"), url.raw_path.decode("ascii").rstrip("/")} - {""}
        if hosts:
            written.append(rf"(?:https?://)?(?<![\w-])(?:{_any(hosts)})(?![\w-])(?::\d+)?(?:{_any(paths)})?")
    pattern = re.compile("|".join(written), re.IGNORECASE)
    return lambda text: pattern.sub("API", text)


def _any(texts: Iterable[str]) -> str:
    """A pattern of any of some texts, the longest that is there."""
    return "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True))


def _unfinished(folder: Path) -> Mapping[str, Any]:
    """Why episodes could not be finished, as the summary of an evaluation names them."""
    file = folder / SUMMARY
    found = _object(file).get("unfinished") if file.is_file() else None
    return found if isinstance(found, dict) else {}


def _key(row: Row) -> Key:
    return row["item"], row["sample"]


def _episode(
    key: Key, replies: Mapping[int, Row], row: Row | None, why: Mapping[str, str], settings: Row
) -> ImportedEpisode:
    attempts = _attempts(row)
    begins = _begins(attempts)
    level = replies[min(replies)].get("level")
    messages: list[LogMessage] = []
    tokens: collections.Counter[str] = collections.Counter()
    models: dict[str, None] = {}
    for turn in sorted(replies):
        reply = replies[turn]["reply"]
        added = replies[turn].get("added")
        before = [_message(message) for message in _list(added) if isinstance(message, dict)]
        if before and turn in begins:
            before[0] |= {"note": f"attempt {begins[turn]} begins", "again": True}
        messages += [*before, *_reply(reply)]
        counted = {name: reply.get(name) for name in ("prompt_tokens", "completion_tokens", "reasoning_tokens")}
        tokens.update({name: number for name, number in counted.items() if type(number) is int})
        tokens["without"] += counted["prompt_tokens"] is None or counted["completion_tokens"] is None
        models |= {clean(reply["model"]): None} if _text(reply.get("model")) else {}
    last = attempts[-1] if attempts else {}
    solved = any(attempt.get("solved") is True for attempt in attempts)
    unanswered = _ENDS.get(str(last.get("status")))
    outcome = "unfinished" if not attempts else unanswered or ("solved" if solved else "unsolved")
    item, sample = key
    metadata: dict[str, Scalar] = {"item": item, "sample": sample + 1}
    metadata |= {name: last[name] for name in ("status", "strict") if isinstance(last.get(name), str | bool)}
    if row is not None and _text(row.get("category")):
        metadata["category"] = clean(row["category"])
    if attempts and len(attempts) > 1:
        metadata["attempts"] = len(attempts)
    if (reason := why.get(f"item {item}, sample {sample}")) is not None and not attempts:
        metadata["why it is unfinished"] = clean(shortened(reason, 1000))
    metadata |= {"tokens read": tokens["prompt_tokens"], "tokens written": tokens["completion_tokens"]}
    metadata |= {"of these for reasoning": tokens["reasoning_tokens"]} if tokens["reasoning_tokens"] else {}
    metadata |= {"replies without counts of tokens": tokens["without"]} if tokens["without"] else {}
    metadata |= {"model that replied": ", ".join(models)} if models else {}
    return ImportedEpisode(
        messages=tuple(messages),
        # Earlier versions wrote a score of 0 where a reply was cut or withheld.
        reward=None if unanswered else to_float(last.get("score")),
        success=solved if attempts and not unanswered else None,
        metadata=metadata | _asked(settings),
        outcome=outcome,
        label=f"item {item} · sample {sample + 1}",
        name=f"item {item}, sample {sample + 1}",
        task=clean(_text(settings.get("env"))),
        level=level if isinstance(level, str) and _LEVEL.fullmatch(level) else "",
    )


def _attempts(row: Row | None) -> list[Row]:
    """What is known of each attempt of a finished episode, of which there is usually one."""
    if row is None:
        return []
    found = row.get("attempts")
    attempts = [attempt for attempt in _list(found) if isinstance(attempt, dict)]
    return attempts or [row]


def _begins(attempts: list[Row]) -> dict[int, int]:
    """The turns in which a second or later attempt begins, and its number."""
    found, turn = {}, 0
    for number, attempt in enumerate(attempts[:-1], start=2):
        turn += attempt["turns"] if type(attempt.get("turns")) is int else 0
        found[turn] = number
    return found


def _message(message: Row) -> LogMessage:
    role, content = message.get("role"), message.get("content")
    known = role if role in ("system", "user", "assistant", "tool") else "user"
    return {"role": str(known), "content": clean(content) if isinstance(content, str) else ""}


def _reply(reply: Row) -> list[LogMessage]:
    """The messages of a reply: what the model thought, why it has not answered, and what it said."""
    messages: list[LogMessage] = []
    for role, name in (("reasoning", "reasoning"), ("refusal", "refusal")):
        if text := _text(reply.get(name)):
            messages.append({"role": role, "content": clean(text)})
    said: LogMessage = {"role": "assistant", "content": clean(_text(reply.get("text")))}
    if reply.get("finish") != "stop":
        said["lost"] = True
    notes = []
    if reply.get("finish") == "length":
        notes.append(_CUT)
    elif reply.get("finish") == "refusal":
        notes.append("withheld")
    for name, verb in (("completion_tokens", "written"), ("prompt_tokens", "read")):
        if type(number := reply.get(name)) is int:
            notes.append(f"{number:,} tokens {verb}")
    if tokens := _logprobs(reply.get("logprobs")):
        if drawn := _placed(tokens, said["content"]):
            said["tokens"] = drawn
        else:
            notes.append(f"log-probabilities of {len(tokens)} tokens, which do not join to this text")
    if notes:
        said["note"] = ", ".join(notes)
    return [*messages, said]


def _logprobs(found: Any) -> list[tuple[str, float]]:
    """Tokens with their log-probabilities, nats; empty unless all are usable."""
    pairs = _list(found) if len(_list(found)) <= MAX_LOGPROBS else []
    usable = all(
        isinstance(pair, list)
        and len(pair) == 2
        and isinstance(pair[0], str)
        and isinstance(pair[1], int | float)
        and finite(pair[1]) is not None
        for pair in pairs
    )
    if not usable:
        return []
    return [(clean(text), float(value)) for text, value in pairs]


def _placed(tokens: list[tuple[str, float]], content: str) -> list[tuple[str, float]]:
    """The tokens that a text ends with, after what a server has inserted before them; empty if it does not.

    The last one may be a stop token, which is not in the text.
    """
    for joined in ("".join(text for text, _ in part) for part in (tokens, tokens[:-1])):
        if joined and content.endswith(joined):
            inserted = content.removesuffix(joined)
            return [(inserted, math.nan), *tokens] if inserted else tokens
    return []


def _asked(settings: Row) -> dict[str, Scalar]:
    """What the model was asked, from the settings; without the address."""
    body = settings.get("body")
    found = {name: settings.get(name) for name in ("model", "env", "style", "seed")}
    found["turns at most"] = settings.get("turns")
    found |= body if isinstance(body, dict) else {}
    return {
        clean(str(name)): clean(value) if isinstance(value, str) else finite(value)
        for name, value in found.items()
        if isinstance(value, str | bool | int | float)
    }


def _about(settings: Row, episodes: list[ImportedEpisode]) -> str:
    counts = collections.Counter(episode.outcome for episode in episodes)
    answered = counts["solved"] + counts["unsolved"]
    parts = [f"{answered} answered"]
    parts += [f"{counts[name]} {name}" for name in ("cut", "refused", "unfinished") if counts[name]]
    model, env = (clean(str(settings.get(name, "?"))) for name in ("model", "env"))
    return f"Evaluation of the API model {model} in {env}: {', '.join(parts)}."


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
