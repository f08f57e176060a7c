"""Writes the keys of a configuration into the page reference/config.md, a table for each section."""

import json
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from agentrl_jax.config import Config
from agentrl_jax.config.keys import kind_of, sections_of

MARK = "<!-- keys -->"
Row = tuple[str, str, str]
"""Key, default and help text."""


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replaces the mark, for MkDocs."""
    return markdown.replace(MARK, "\n".join(tables())) if MARK in markdown else markdown


def tables() -> Iterator[str]:
    """The lines of a table of the keys without a section, and of one for each section."""
    sections = {name: field for name, field in Config.model_fields.items() if _sections(field)}
    yield from _table([_row(name, field) for name, field in Config.model_fields.items() if name not in sections])
    for name, field in sections.items():
        yield f"\n## {name}\n"
        parts, prefix = _sections(field), "tasks.0" if name == "tasks" else name
        yield " ".join((field.description or parts[0].__doc__ or "").split()) + "\n"
        yield from _table(list(_rows(parts, prefix)))


def _sections(field: Any) -> list[type]:
    kind = field.annotation
    return sections_of(get_args(kind)[0] if get_origin(kind) is tuple else kind)


def _rows(parts: list[type], prefix: str) -> Iterator[Row]:
    """The keys of a section, or of all kinds of one, each once."""
    if len(parts) > 1:
        kinds = {kind_of(part): part for part in parts}
        meanings = (f"`{kind}`: {' '.join((part.__doc__ or '').split())}" for kind, part in kinds.items())
        yield f"{prefix}.kind", "", "<br>".join(meanings)
    known: set[str] = set()
    for part in parts:
        for name, field in part.model_fields.items():
            if name in known or (name == "kind" and len(parts) > 1):
                continue
            known.add(name)
            own = [each for each in parts if name in each.model_fields]
            if below := _sections(field):
                yield from _rows(below, f"{prefix}.{name}")
            else:
                key, default, text = _row(f"{prefix}.{name}", field)
                for other in {_row(key, each.model_fields[name])[1]: each for each in reversed(own)}.items():
                    if other[0] != default:
                        text += f" Default of {kind_of(other[1])}: `{other[0]}`."
                names = ", ".join(kind_of(each) for each in own) if len(own) < len(parts) else ""
                only = f" (kind {names})" if names else ""
                yield key, default, text + only


def _row(key: str, field: Any) -> Row:
    choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    text = " ".join((field.description or "").split())
    text += f" One of {', '.join(map(str, choices))}." if any(str(choice) not in text for choice in choices) else ""
    if field.is_required():
        return key, "", text
    value = field.get_default(call_default_factory=True)
    return key, "none" if value is None else value if isinstance(value, str) and value else json.dumps(value), text


def _table(rows: list[Row]) -> Iterator[str]:
    yield "| key | default | meaning |"
    yield "|---|---|---|"
    for key, default, text in rows:
        yield f"| `{key}` | {f'`{default}`' if default else ''} | {_escaped(text)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("&lt;br>", "<br>")
