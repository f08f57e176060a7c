"""What the files beside a `tokenizer.json` say: the chat template, and which special tokens mean what. Host only."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl_jax.text.chat_template import ChatTemplate

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


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


def read_folder(folder: Path) -> Beside:
    """Reads `tokenizer_config.json`, `special_tokens_map.json`, `chat_template.jinja` and `generation_config.json`.

    Each may be missing. Of several templates the one called "default" is taken, and the `.jinja` file goes before the
    one in the configuration.

    Raises:
        ValueError: a file cannot be read as what it should be.
    """
    settings = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
    names = {role: name for role in _ROLES if (name := _token_name(settings.get(role))) is not None}
    file = folder / "chat_template.jinja"
    source = _read_text(file) if file.is_file() else _default_template(settings.get("chat_template"), folder)
    stops = _read_json(folder / "generation_config.json").get("eos_token_id", [])
    stops = stops if isinstance(stops, list) else [stops]
    if not all(type(stop) is int for stop in stops):
        raise ValueError(f"{folder / 'generation_config.json'}: eos_token_id {stops}; expected ids, one or a list")
    return Beside(
        template=None if source is None else ChatTemplate(source, tuple(names.items())),
        end=names.get("eos_token"),
        pad=names.get("pad_token"),
        stop_ids=tuple(stops),
    )


def read_gguf(fields: Mapping[str, Any]) -> Beside:
    """Takes the same from the metadata of a GGUF file.

    Args:
        fields: `gguf.GGUFReader(path).fields`.
    """
    tokens = fields["tokenizer.ggml.tokens"]

    def value(name: str) -> Any:
        field = fields.get(f"tokenizer.{name}")
        return None if field is None else field.contents()

    def token(name: str) -> str | None:
        index = value(f"ggml.{name}_token_id")
        return None if index is None else bytes(tokens.parts[tokens.data[index]]).decode()

    tokens_by_role = {f"{role}_token": token(role) for role in ("bos", "eos")}
    variables = tuple((role, name) for role, name in tokens_by_role.items() if name is not None)
    source, stop = value("chat_template"), value("ggml.eos_token_id")
    return Beside(
        template=None if source is None else ChatTemplate(source, variables),
        end=tokens_by_role["eos_token"],
        pad=token("padding"),
        stop_ids=() if stop is None else (stop,),
    )


def _default_template(entry: Any, folder: Path) -> str | None:
    if isinstance(entry, list):
        entry = next((each.get("template") for each in entry if each.get("name") == "default"), None)
    if entry is None or isinstance(entry, str):
        return entry
    raise ValueError(f"{folder / 'tokenizer_config.json'}: chat_template is neither text nor a list with a default")


def _token_name(entry: Any) -> str | None:
    entry = entry.get("content") if isinstance(entry, dict) else entry
    return entry if isinstance(entry, str) else None


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 ({error.reason}); the file is damaged: copy it again") from error


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(_read_text(file))
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}: not JSON (line {error.lineno}); the file is damaged: copy it again") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file}: a JSON {type(content).__name__}; expected an object")
    return content
