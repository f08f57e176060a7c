"""Which items to play: from ranges, or from id files of AgentGym and AgentGym-RL in a local folder.

`AgentItemId/<env>_train.json` and `AgentEval/<env>/*.json` (the test set and its categories) are arrays of objects with
an `item_id`; other fields, such as conversations, are ignored. Files `mappings_*.json` beside a file of items give the
item numbers of ALFWorld's game paths. The data of AgentGym-RL is not for commercial use (CC-BY-NC-4.0); nothing here
downloads it. All functions raise `ValueError` for what they cannot use.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl_jax.errors import BadValue
from agentrl_jax.strict_json import parse

MAX_BYTES = 256 << 20
"""Maximum number of bytes of a file that is read."""

MAX_ITEMS = 10_000_000
"""Maximum number of items that a range may name; far more than any environment has."""

_RANGE = re.compile(r"\s*([0-9]{1,12})\s*(?:-\s*([0-9]{1,12})\s*)?", re.ASCII)
_RANGES = re.compile(r"[0-9\s,-]*", re.ASCII)
_MAPPINGS = "mappings_*.json"


def load_items(source: str, environment: str) -> tuple[int, ...]:
    """Items of an environment of AgentGym, from a range such as `0-399,450`, or else from a JSON file.

    A source is a range if it consists of digits, commas, hyphens and white space; otherwise it is a path. If nothing is
    there, and a part between commas is a range, the error is that of a range.
    """
    if _RANGES.fullmatch(source):
        return parse_ranges(source)
    path = Path(source)
    if not os.path.exists(source) and any(map(_RANGE.fullmatch, source.split(","))):
        return parse_ranges(source)  # which names the part that is wrong
    ids = read_ids(path)
    mapping = read_mapping(path.parent) if environment == "alfworld" else None
    items = []
    for number, item_id in enumerate(ids):
        try:
            items.append(item_index(item_id, environment, mapping))
        except ValueError as error:
            raise BadValue.at(path, f"entry {number}: {error}", number) from None
    return tuple(items)


def parse_ranges(text: str) -> tuple[int, ...]:
    """Items of a range such as `0-399,450`, both ends included, in the order of the text.

    Raises if an item is repeated.
    """
    items: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            wrong = f"items {text[:200]!r}: {part[:50]!r} is not a range"
            raise BadValue(f"{wrong}; expected ranges such as 0-399,450, or a JSON file", key="items", value=text)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise BadValue.of("items", text, f"the range {part.strip()!r} ends before it starts")
        if len(items) + last - first >= MAX_ITEMS:
            raise BadValue.of("items", text, f"more than {MAX_ITEMS} items; name fewer")
        items.extend(range(first, last + 1))
    if len(set(items)) < len(items):
        raise BadValue.of("items", text, "an item is named twice; name each once")
    return tuple(items)


def item_index(item_id: str, environment: str, mapping: Mapping[str, int] | None = None) -> int:
    """The number that an environment's `reset` takes for an item id.

    It is the number after the last `_`: `webshop_6` is 6, and `nq_12` is item 12, counted from 0, over all data sets of
    SearchQA. ALFWorld's ids in the AgentGym-RL data are game paths, `<task type>_<trial>`, whose last number is a time,
    not a game; they are looked up in `mapping`, see `read_mapping`.
    """
    head, _, tail = item_id.rpartition("_")
    if environment == "alfworld" and head not in ("", "alfworld"):
        if mapping is None or item_id not in mapping:
            raise BadValue.of(
                "item id",
                item_id,
                f"a path id of ALFWorld; expected it in a file {_MAPPINGS} in the folder of the item file, as "
                f"task_type and task_id; those there name {len(mapping or ())} items",
            )
        return mapping[item_id]
    if not re.fullmatch(r"[0-9]{1,12}", tail):
        raise BadValue.of("item id", item_id, "expected a number of at most 12 digits after the last '_'")
    return int(tail)


def read_mapping(folder: Path) -> dict[str, int]:
    """ALFWorld's item numbers by path id, from all files `mappings_*.json` in a folder.

    Each entry has an integer `item_id` and the texts `task_type` and `task_id`.
    """
    mapping: dict[str, int] = {}
    for path in sorted(folder.glob(_MAPPINGS)):
        for number, entry in enumerate(_read_objects(path)):
            item, kind, task = (entry.get(key) for key in ("item_id", "task_type", "task_id"))
            if type(item) is not int or item < 0 or not (isinstance(kind, str) and isinstance(task, str)):
                raise BadValue.at(
                    path,
                    f"entry {number}: expected an item_id from 0, a task_type and a task_id; found the keys "
                    f"{list(entry)[:10]}",
                    number,
                )
            if mapping.setdefault(f"{kind}_{task}", item) != item:
                raise BadValue.at(path, f"entry {number}: {kind}/{task} names another item already; keep one", number)
    return mapping


def read_ids(path: Path) -> tuple[str, ...]:
    """The item ids of a file, at least one, in order."""
    ids: list[Any] = [entry.get("item_id") for entry in _read_objects(path)]
    for number, item_id in enumerate(ids):
        if not isinstance(item_id, str):
            raise BadValue.at(
                path, f"entry {number}: item_id is a {type(item_id).__name__}; expected text as 'webshop_6'", number
            )
    if not ids:
        raise BadValue.at(path, "holds no items; expected at least one")
    return tuple(ids)


def _read_objects(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise BadValue.at(
            path, f"cannot be read ({error}); expected a JSON file with items, or ranges such as 0-399,450"
        ) from None
    if len(content) > MAX_BYTES:
        raise BadValue.at(path, f"larger than {MAX_BYTES >> 20} MiB; split it, or leave out the conversations")
    data = parse(content, str(path))
    if not isinstance(data, list):
        raise BadValue.at(
            path, f"holds a JSON {type(data).__name__}; expected an array of objects", type(data).__name__
        )
    for number, entry in enumerate(data):
        if not isinstance(entry, dict):
            raise BadValue.at(path, f"entry {number} is a JSON {type(entry).__name__}; expected an object", number)
    return data
