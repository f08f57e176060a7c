"""What several scenes share: the last match in texts, and bounded lists of lines."""

import re
from collections.abc import Iterable, Sequence

MAX_ENTRIES = 100
"""Entries of one list."""
MAX_LENGTH = 2_000
"""Characters of a name, a note or a line."""

Entry = tuple[str, str]


def last_match(pattern: re.Pattern[str], texts: Sequence[str]) -> re.Match[str] | None:
    """The last match in the last text that has one."""
    for text in reversed(texts):
        if found := list(pattern.finditer(text)):
            return found[-1]
    return None


def first_match(pattern: re.Pattern[str], texts: Sequence[str]) -> re.Match[str] | None:
    """The last match in the first text that has one."""
    return next((found for text in texts if (found := last_match(pattern, [text]))), None)


def listed(title: str, entries: Iterable[Entry], nothing: str = "") -> list[tuple[str, list[Entry]]]:
    """A list of a scene with at most `MAX_ENTRIES` entries; without any, one that says `nothing`, or no list at all."""
    found = [(shown(name), shown(note)) for name, note in entries]
    left = len(found) - MAX_ENTRIES
    found = [*found[:MAX_ENTRIES], *([(f"and {left} more", "")] if left > 0 else [])]
    if not found and not nothing:
        return []
    return [(title, found or [(nothing, "")])]


def shown(text: str) -> str:
    """The text without white space around it, cut at `MAX_LENGTH` characters."""
    text = text.strip()
    return text if len(text) <= MAX_LENGTH else text[:MAX_LENGTH] + "..."


def last_answer(texts: Sequence[str]) -> list[str]:
    """The lines of the answer to the last action; none at the start."""
    return shown(texts[-1]).splitlines() if len(texts) > 1 else []
