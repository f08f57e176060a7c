"""Seeded damage to files, and the check of its outcome: a result, or one line for the user."""

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

from agentrl_jax.errors import MAX_ERROR

ODD = [None, True, 0, -1, 1.5, 2**31, 2**63, 10**400, "", "x", "a\nb", "\ud800", "a\0b", "Ġ" * 5000, [], [1], {}]
"""Unexpected values."""


def damaged(content: bytes, rng: random.Random, words: Sequence[bytes] = ()) -> bytes:
    """Returns the bytes after one to five changes: bytes flipped, cut, repeated, or replaced by one of `words`."""
    made = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5])):
        place = rng.randrange(len(made) + 1)
        kind = rng.choice(["flip", "flip", "cut", "drop", "repeat", *(["word"] * 3 if words else [])])
        if kind == "flip" and place < len(made):
            made[place] ^= rng.randrange(1, 256)
        elif kind == "cut":
            del made[place:]
        elif kind == "drop":
            del made[place : place + rng.randrange(1, 30)]
        elif kind == "repeat":
            made[place:place] = made[place : place + 12] * rng.choice([1, 10, 100])
        elif kind == "word":
            made[place : place + rng.randrange(3)] = rng.choice(words)
    return bytes(made)


def with_odd_values(tree: Any, rng: random.Random) -> Any:
    """Returns a copy of JSON data with one or two values replaced or removed."""
    made = json.loads(json.dumps(tree))
    for _ in range(rng.choice([1, 1, 2])):
        node = made
        while isinstance(node, dict | list) and node:
            key = rng.choice(list(node)[:40]) if isinstance(node, dict) else rng.randrange(min(len(node), 10))
            below = node[key]
            if isinstance(below, dict | list) and below and rng.random() < 0.8:
                node = below
                continue
            if rng.random() < 0.2:
                del node[key]
            else:
                node[key] = rng.choice(ODD)
            break
    return made


def ends_in_one_line(action: Callable[[], Any], refusal: type[Exception]) -> bool:
    """Returns whether the action succeeds; checks that a refusal is one short line. Other errors propagate."""
    try:
        action()
    except refusal as error:
        text = str(error)
        assert "\n" not in text
        assert 0 < len(text) <= MAX_ERROR, text[:200]
        return False
    return True
