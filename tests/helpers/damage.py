"""Files of tokenizers and levels, seeded damage to files, and the check of its outcome: a result, or one line."""

import io
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agentrl_jax.errors import MAX_ERROR
from agentrl_jax.text import tokenizer
from envs_jax.frozen_lake import levels as maps
from envs_jax.sokoban import levels as xsb

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


XSB = "; c\n######\n#@$. #\n######\n\nLevel 1\n####\n#@ #\n#$ #\n#. #\n####\n"
MAPS = "SFFF\nFHFH\nFFFH\nHFFG\n\nSFFF\nFFFF\nFFFF\nFFFG\n"
TOKENIZER = tokenizer.small_files()["tokenizer.json"]


def uses_tokenizer(content):
    made = tokenizer.from_files({"tokenizer.json": content}, "a folder")
    made.decode(made.encode("Up <answer>é\n"))
    made.decode(range(made.vocab_size), skip_special=False)


def npy(pack):
    stream = io.BytesIO()
    np.save(stream, pack)
    return stream.getvalue()


LEVELS = {
    ("SimpleSokoban", "txt"): XSB.encode(),
    ("FrozenLake", "txt"): MAPS.encode(),
    ("SimpleSokoban", "npy"): npy(xsb.stack_levels(xsb.parse_xsb(XSB), 6, 6)),
    ("FrozenLake", "npy"): npy(maps.stack_levels(maps.parse_maps(MAPS))),
}
