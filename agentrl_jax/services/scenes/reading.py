"""What several scenes share: the last match in a text, and bounded lists of lines."""

import re
from collections.abc import Iterable

MAX_ENTRIES = 100
"""Entries of one list."""
MAX_LIST = 10_000
"""Characters of all entries of a list together."""
MAX_LENGTH = 2_000
"""Characters of a title, a name, a note or lines."""

Entry = tuple[str, str]


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match in a text."""
    found = None
    for match in pattern.finditer(text):
        found = match
    return found


def listed(title: str, entries: Iterable[Entry], nothing: str = "") -> list[tuple[str, list[Entry]]]:
    """A bounded list of a scene; without entries, one that says `nothing`, or no list at all."""
    found: list[Entry] = []
    left = characters = 0
    for name, note in entries:
        entry = shown(name), shown(note)
        characters += sum(map(len, entry))
        if left or len(found) == MAX_ENTRIES or characters > MAX_LIST:
            left += 1
        else:
            found.append(entry)
    found += [(f"and {left} more", "")] if left else []
    if not found and not nothing:
        return []
    return [(shown(title), found or [(nothing, "")])]


def shown(text: str) -> str:
    """The text without white space around it, cut at `MAX_LENGTH` characters."""
    text = text.strip()
    return text if len(text) <= MAX_LENGTH else text[:MAX_LENGTH] + "..."


def lines(text: str) -> list[str]:
    """The lines of a text that stand below a scene."""
    return shown(text).splitlines()
