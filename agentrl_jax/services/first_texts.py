"""What items showed first, kept as digests: whether an item that is held out was trained on under another number."""

import hashlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from agentrl_jax.errors import refusals
from agentrl_jax.strict_json import parse

FILE = "first_texts.jsonl"
"""In a run's folder: one line for each training item that was played, so that a resumed run still knows of it."""


def digest(text: str) -> str:
    """Of a first observation, whatever its letter case and white space."""
    return hashlib.blake2b(" ".join(text.lower().split()).encode(), digest_size=16).hexdigest()


class FirstTexts:
    """Digests by environment and item. Safe in threads; no larger than the lists of items."""

    def __init__(self, folder: Callable[[], Path] | None = None):
        """Keeps them in a file of `folder`, or in memory only. Neither is looked at before the first use."""
        self._folder = folder
        self._known: dict[str, dict[int, str]] | None = None
        self._lock = threading.Lock()

    def add(self, env: str, item: int, text: str) -> None:
        """Notes what an item showed."""
        found = digest(text)
        with self._lock:
            known = self._read().setdefault(env, {})
            if known.get(item) == found:
                return
            known[item] = found
            if self._folder is not None:
                with open(self._folder() / FILE, "a", encoding="utf-8") as file:
                    file.write(json.dumps([env, item, found]) + "\n")

    def of(self, env: str) -> dict[int, str]:
        """Digests by item."""
        with self._lock:
            return dict(self._read().get(env, {}))

    def _read(self) -> dict[str, dict[int, str]]:
        if self._known is None:
            self._known = {}
            path = None if self._folder is None else self._folder() / FILE
            if path is not None and path.exists():
                content = path.read_bytes()
                whole = content.rfind(b"\n") + 1  # behind it is what a crash has cut
                if whole < len(content):
                    os.truncate(path, whole)
                with refusals():
                    for line in content[:whole].splitlines():
                        env, item, found = parse(line, str(path))
                        self._known.setdefault(env, {})[item] = found
        return self._known
