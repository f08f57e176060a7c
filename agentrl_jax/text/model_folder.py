"""What the files beside a `tokenizer.json` say: the chat template, and which special tokens mean what. Host only."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl_jax.text.chat_template import ChatTemplate

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""Files that say how a model reads and writes."""


@dataclasses.dataclass(frozen=True)
class Beside:
    """What is known of a tokeniser from outside its own file.

    Attributes:
        template: its chat template.
        end: name of the end-of-sequence token.
        pad: name of the padding token.
        stop_ids: ids of the tokens that end a reply, as the model's own generation settings list them.
    """

    template: ChatTemplate | None = None
    end: str | None = None
    pad: str | None = None
    stop_ids: tuple[int, ...] = ()


def read_folder(folder: Path) -> dict[str, bytes]:
    """Content of those of `NAMES` that a folder holds."""
    return {name: (folder / name).read_bytes() for name in NAMES if (folder / name).is_file()}


def read_files(files: Mapping[str, bytes], source: str) -> Beside:
    """What the files say. Each may be missing.

    Of several templates the one called "default" is taken, and the `.jinja` file goes before the one in the
    configuration.

    Args:
        files: content by name, of those in `NAMES`.
        source: where they are from, for messages.

    Raises:
        ValueError: a file cannot be read as what it should be.
    """
    settings = _json(files, "special_tokens_map.json", source) | _json(files, "tokenizer_config.json", source)
    names = {role: name for role in _ROLES if (name := _token_name(settings.get(role))) is not None}
    template = text_of(files, "chat_template.jinja", source) or _default_template(settings.get("chat_template"), source)
    stops = _json(files, "generation_config.json", source).get("eos_token_id", [])
    stops = stops if isinstance(stops, list) else [stops]
    if not all(type(stop) is int for stop in stops):
        raise ValueError(f"{source}/generation_config.json: eos_token_id {stops}; expected ids, one or a list")
    return Beside(
        template=None if template is None else ChatTemplate(template, tuple(names.items())),
        end=names.get("eos_token"),
        pad=names.get("pad_token"),
        stop_ids=tuple(stops),
    )


def text_of(files: Mapping[str, bytes], name: str, source: str) -> str | None:
    """A file as text; None if it is not among them; arguments and errors as `read_files`."""
    try:
        return files[name].decode("utf-8") if name in files else None
    except UnicodeDecodeError as error:
        raise ValueError(f"{source}/{name}: not UTF-8 ({error.reason}); the file is damaged: copy it again") from error


def _default_template(entry: Any, source: str) -> str | None:
    if isinstance(entry, list):
        entry = next((each.get("template") for each in entry if each.get("name") == "default"), None)
    if entry is None or isinstance(entry, str):
        return entry
    raise ValueError(f"{source}/tokenizer_config.json: chat_template is neither text nor a list with a default")


def _token_name(entry: Any) -> str | None:
    entry = entry.get("content") if isinstance(entry, dict) else entry
    return entry if isinstance(entry, str) else None


def _json(files: Mapping[str, bytes], name: str, source: str) -> dict[str, Any]:
    text = text_of(files, name, source)
    if text is None:
        return {}
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{source}/{name}: not JSON (line {error.lineno}); the file is damaged: copy it again"
        ) from error
    if not isinstance(content, dict):
        raise ValueError(f"{source}/{name}: a JSON {type(content).__name__}; expected an object")
    return content
