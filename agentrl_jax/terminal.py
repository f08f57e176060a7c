"""What is printed at the terminal: texts are shown as they are, whoever wrote them, and nothing in them is obeyed."""

import sys
import unicodedata
from typing import Any

from rich.console import Console, Group
from rich.text import Text


def visible(text: str) -> str:
    """Text in which all characters that a terminal would obey are escaped, except the ends of lines and tabs."""
    return "".join(
        c if c.isprintable() or c in "\n\t" or unicodedata.category(c) == "Zs" else ascii(c)[1:-1] for c in text
    )


def literal(text: str, style: str = "") -> Text:
    """Text for any console of rich, which would read a plain string as markup, and cuts a cell with a tab in it."""
    return Text(visible(text).expandtabs(), style)


class Terminal(Console):
    """A console that takes no string, also in tables, for markup or an emoji, and prints lines without wrapping them.

    Of strings it prints only what is `visible`; in a `Text`, use `literal`.
    """

    def __init__(self, **options: Any):
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Makes a `Text` of a string, see `Console.render_str`; rich calls it for all strings."""
        return super().render_str(visible(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Prints each object on lines of its own, a text on as many as it has: a log is searched by line."""
        for one in objects:
            if isinstance(one, Group):
                self.print(*one.renderables, **options)
            else:
                super().print(one, **{"soft_wrap": isinstance(one, str | Text), **options})


def to_stderr(line: str) -> None:
    """Prints a line about the progress of a command on standard error, at once."""
    print(visible(line), file=sys.stderr, flush=True)
