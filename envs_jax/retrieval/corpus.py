"""Passages that are searched, and the reader of their files."""

import dataclasses
import os
from collections.abc import Iterable
from typing import Any

from envs_jax.errors import BadValue
from envs_jax.json_rows import check_text, json_rows, quoted, refuse

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
            raise BadValue("the corpus has no passages; expected at least one", "corpus")
        names: dict[str, int] = {}
        for index, passage in enumerate(self.passages):
            if names.setdefault(passage.name, index) != index:
                both = f"of passages {names[passage.name]} and {index}; give each its own"
                raise BadValue(f"id is {quoted(passage.name)}, {both}", "id", passage.name)

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
        BadValue: the file is missing or empty; or a line is no strict JSON, repeats a key or an id, has other keys or
            other types than expected, or has no text at all. The message names the file and the line.
    """
    seen = dict[str, str]()

    def passage(value: dict[str, Any], where: str) -> Passage:
        made = _passage(value, where)
        if made.name in seen:
            what = f"id {quoted(made.name)} is that of {seen[made.name]}; give each its own"
            raise refuse(where, what, made.name)
        seen[made.name] = where
        return made

    return Corpus(tuple(json_rows(path, passage, "passage")))


def _passage(value: dict[str, Any], where: str) -> Passage:
    if set(value) not in _FORMS:
        known = set().union(*_FORMS)
        odd = next((key for key in value if key not in known), "")
        what = f"has the key {quoted(odd)}" if odd else f"has the keys {', '.join(sorted(value)) or 'of none'}"
        raise refuse(where, f"{what}; expected id and contents, or id, title and text", odd)
    name = value["id"]
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise refuse(where, f"id is a JSON {type(name).__name__}; expected a string or an integer", name)
    for key, text in value.items():
        check_text(where, key, str(text) if key == "id" else text)
    if "contents" in value:
        title, line_feed, text = value["contents"].partition("\n")
        title, text = (title.removeprefix('"').removesuffix('"'), text) if line_feed else ("", title)
    else:
        title, text = value["title"], value["text"]
    if not (title + text).strip():
        raise refuse(where, "has no text; leave the passage out", "")
    return Passage(str(name), title, text)
