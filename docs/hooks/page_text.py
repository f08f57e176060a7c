"""Hook of MkDocs: lines are not broken inside options, intervals and dates, and a figure opens in its own size."""

import re
from typing import Any

MARKUP = re.compile(r"(<pre.*?</pre>|<code>[^<]*</code>|<[^>]*>)", re.DOTALL)
IMAGE = re.compile(r'<img [^>]*src="([^":]+)"[^>]*>')
IN_TEXT = re.compile(r"\[[-+]?[\d.]+, [-+]?[\d.]+\]|\b\d{4}-\d\d-\d\d\b")
"""An interval or a date."""
IN_CODE = re.compile(r"(?<!\S)(?=\S*-)(?:\S{1,24}(?!\S)|--?\w+)")
"""A short word with a hyphen, or an option without its value."""
LONG = 24
"""Characters; a longer word of code may be broken after a slash."""


def on_page_content(html: str, **_: Any) -> str:
    """Marks what stays on one line, and links figures to their files."""
    parts = MARKUP.split(html)
    linked = False
    for i, part in enumerate(parts):
        if i % 2 == 0:
            parts[i] = re.sub(r"(?<=\d) %", "&nbsp;%", IN_TEXT.sub(_whole, part))
        elif part.startswith("<code>") and part != "<code>":
            parts[i] = re.sub(r"\S+", _breaks, IN_CODE.sub(_whole, part[6:-7])).join(("<code>", "</code>"))
        elif part.startswith("<a "):
            linked = True
        elif part == "</a>":
            linked = False
        elif (image := IMAGE.fullmatch(part)) and not linked:
            parts[i] = f'<a class="figure" href="{image[1]}">{part}</a>'
    return "".join(parts)


def _whole(found: re.Match[str]) -> str:
    return f'<span class="whole">{found[0]}</span>'


def _breaks(word: re.Match[str]) -> str:
    return word[0] if len(word[0]) <= LONG or "<" in word[0] else word[0].replace("/", "/<wbr>")
