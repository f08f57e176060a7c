"""Shortens foreign texts before they are shown."""

MAX_SHOWN_CHARS = 500
"""Characters of an error or of an echoed input that are shown or logged."""


def cut(text: str, most: int = MAX_SHOWN_CHARS) -> str:
    """A text of at most `most` characters, followed by how many were cut off."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} more characters)"
