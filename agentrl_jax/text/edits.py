"""How chat templates change contents: they cut outer white space and drop the think blocks of responses."""

from collections.abc import Callable

_CLOSING = "</think>"

CUTS: dict[str, Callable[[str], str]] = {
    "kept": lambda content: content,
    "both ends": str.strip,
    "start": str.lstrip,
    "end": str.rstrip,
    "lines at both ends": lambda content: content.strip("\n"),
    "lines at the start": lambda content: content.lstrip("\n"),
    "lines at the end": lambda content: content.rstrip("\n"),
}
"""Which outer white space is cut, by name; "lines" are newlines alone."""

THOUGHT_CUTS: dict[str, Callable[[str], str]] = {
    "kept": lambda content: content,
    "dropped": lambda content: content.split(_CLOSING)[-1],
    "dropped with the lines after it": lambda content: content.split(_CLOSING)[-1].lstrip("\n"),
    "dropped with the space around the rest": lambda content: content.split(_CLOSING)[-1].strip(),
    "kept, ends cut": str.strip,
}
"""Changes to a response with a think block, by name."""


def holds_thought(content: str) -> bool:
    """Returns whether a response has the end of a think block."""
    return _CLOSING in content
