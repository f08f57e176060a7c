"""Passages that are searched, and the reader of their files."""

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agentrl_jax.errors import BadValue, UserError, shortened, text_flaw
from agentrl_jax.json_files import JsonLines

_FORMS = ({"id", "contents"}, {"id", "title", "text"})


@dataclasses.dataclass(frozen=True)
class Passage:
    """A passage; `name` is its id in the file. Either title or text may be empty."""

    name: str
    title: str
    text: str

    @property
    def contents(self) -> str:
        """The form of Search-R1's corpora: the title in quotes, a line feed, and the text."""
        return f'"{self.title}"\n{self.text}'

    @property
    def searched(self) -> str:
        """What retrievers index: title, line feed, text."""
        return f"{self.title}\n{self.text}"


@dataclasses.dataclass(frozen=True)
class Corpus:
    """Passages with unique names; elsewhere a passage is known by its id, which is its position here."""

    passages: tuple[Passage, ...]

    def __post_init__(self) -> None:
        if not self.passages:
            raise BadValue("the corpus has no passages; expected at least one", key="corpus")
        names: dict[str, int] = {}
        for index, passage in enumerate(self.passages):
            if names.setdefault(passage.name, index) != index:
                raise BadValue.of(
                    "id", passage.name, f"of passages {names[passage.name]} and {index}; give each its own"
                )

    def __len__(self) -> int:
        return len(self.passages)

    @property
    def texts(self) -> list[str]:
        """What retrievers index, by id."""
        return [passage.searched for passage in self.passages]

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> "Corpus":
        """Passages from pairs of title and text, named by their position."""
        return cls(tuple(Passage(str(index), *pair) for index, pair in enumerate(pairs)))


def read_corpus(path: str | os.PathLike[str]) -> Corpus:
    """Reads a file `.jsonl` with one object a line: `id` (string or integer), and `contents` or `title` and `text`.

    `contents` is that of Search-R1: the title in quotes and the text after a line feed; without a line feed all of it
    is text.

    Raises:
        UserError: the file is missing or empty; or a line is no strict JSON, repeats a key or an id, has other keys or
            other types than expected, or has no text at all. The message names the file and the line.
    """
    file, seen = Path(path), dict[str, str]()
    if not file.is_file():
        raise UserError.at(file, "no such file; give one with a passage a line, as .jsonl")
    passages: list[Passage] = []

    def passage(value: Any, where: str) -> Passage:
        made = _passage(value, where)
        if made.name in seen:
            raise UserError.at(
                where, f"id {shortened(made.name)} is that of {seen[made.name]}; give each its own", made.name
            )
        seen[made.name] = where
        return made

    JsonLines(file, passage, passages.append)
    if not passages:
        raise UserError.at(file, "has no passages; expected at least one a line")
    return Corpus(tuple(passages))


def _passage(value: Any, where: str) -> Passage:
    if not isinstance(value, dict):
        raise UserError.at(where, f"holds a JSON {type(value).__name__}; expected an object with id and contents")
    if set(value) not in _FORMS:
        known = set().union(*_FORMS)
        odd = next((key for key in value if key not in known), "")
        what = f"has the key {shortened(repr(odd))}" if odd else f"has the keys {', '.join(sorted(value)) or 'of none'}"
        raise UserError.at(where, f"{what}; expected id and contents, or id, title and text", odd)
    name = value["id"]
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise UserError.at(where, f"id is a JSON {type(name).__name__}; expected a string or an integer", name)
    for key, text in value.items():
        if key != "id" and not isinstance(text, str):
            raise UserError.at(where, f"{key} is a JSON {type(text).__name__}; expected a string", text)
        if flaw := text_flaw(str(text)):
            raise UserError.at(where, f"{key} has {flaw}, {text!r}; write it as Unicode text", text)
    if "contents" in value:
        title, line_feed, text = value["contents"].partition("\n")
        title, text = (title.removeprefix('"').removesuffix('"'), text) if line_feed else ("", title)
    else:
        title, text = value["title"], value["text"]
    if not (title + text).strip():
        raise UserError.at(where, "has no text; leave the passage out", "")
    return Passage(str(name), title, text)
