"""Reads the files next to a `tokenizer.json`: chat template and roles of special tokens. Runs on the host."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from agentrl_jax.errors import BadValue, shortened
from agentrl_jax.strict_json import parse_object
from agentrl_jax.text.chat_template import ChatTemplate

_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclasses.dataclass(frozen=True)
class TokenizerSettings:
    """Settings of a tokenizer from files other than `tokenizer.json`.

    `eos` and `pad` are names of tokens; `stop_ids` end a response, as the model's generation settings say.
    """

    template: ChatTemplate | None = None
    eos: str | None = None
    pad: str | None = None
    stop_ids: tuple[int, ...] = ()


def read_settings(files: Mapping[str, bytes], source: str) -> TokenizerSettings:
    """Reads the files, by their names in `tokenizer_files.NAMES`. Each may be missing.

    Of several templates the one called "default" is used. A separate template file (`.jinja`, then `.json`) takes
    precedence over the tokenizer's configuration. `source` is where the files are from, for messages.

    Raises:
        ValueError: a file does not have the expected format.
    """
    settings = _json(files, "special_tokens_map.json", source) | _json(files, "tokenizer_config.json", source)
    names = {role: name for role in _ROLES if (name := _token_name(settings.get(role))) is not None}
    template = text_of(files, "chat_template.jinja", source)
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = template or _default_template(_json(files, name, source), f"{source}/{name}")
    stops = _json(files, "generation_config.json", source).get("eos_token_id")
    stops = stops if isinstance(stops, list) else [] if stops is None else [stops]
    if len(stops) > 1024 or not all(type(stop) is int and 0 <= stop < 2**31 for stop in stops):
        raise BadValue(
            f"{source}/generation_config.json: eos_token_id {shortened(stops)}; expected ids of tokens, one or a list",
            key="eos_token_id",
            value=stops,
        )
    return TokenizerSettings(
        template=None if template is None else ChatTemplate(template, tuple(names.items())),
        eos=names.get("eos_token"),
        pad=names.get("pad_token"),
        stop_ids=tuple(stops),
    )


def text_of(files: Mapping[str, bytes], name: str, source: str) -> str | None:
    """Returns a file as text; None if it is missing; arguments and errors as for `read_settings`."""
    try:
        return files[name].decode("utf-8") if name in files else None
    except UnicodeDecodeError as error:
        raise BadValue(
            f"{source}/{name}: not UTF-8 ({error.reason}); the file is damaged: copy it again", key=f"{source}/{name}"
        ) from error


def _default_template(settings: dict[str, Any], path: str) -> str | None:
    entry = settings.get("chat_template")
    if isinstance(entry, list):
        named = (each for each in entry if isinstance(each, dict) and each.get("name") == "default")
        entry = next((each.get("template") for each in named), None)
    if entry is None or isinstance(entry, str):
        return entry
    raise BadValue.at(
        path,
        f"chat_template is {str(entry)[:60]!r}, neither text nor a list with a default; copy the file again",
        str(entry)[:60],
    )


def _token_name(entry: Any) -> str | None:
    entry = entry.get("content") if isinstance(entry, dict) else entry
    return entry if isinstance(entry, str) else None


def _json(files: Mapping[str, bytes], name: str, source: str) -> dict[str, Any]:
    return parse_object(files[name], f"{source}/{name}") if name in files else {}
