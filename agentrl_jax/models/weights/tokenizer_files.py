"""The small files beside a model's weights: tokeniser, chat template, settings of generation."""

from collections.abc import Mapping
from pathlib import Path

from agentrl_jax.models.weights.errors import WeightsError
from agentrl_jax.models.weights.local_files import member, parse_json, read_bytes
from agentrl_jax.models.weights.strict import shown

NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
"""Files that are read with a model and written with it again."""


def read_files(folder: Path) -> dict[str, bytes]:
    """Content of those of `NAMES` that the folder holds.

    Raises:
        WeightsError: one cannot be read, is very large, or lies outside of the folder.
    """
    paths = {name: member(folder, name) for name in NAMES}
    return {name: read_bytes(path) for name, path in paths.items() if path.is_file()}


def chat_template(files: Mapping[str, bytes], where: str) -> str | None:
    """The chat template among the files, or None.

    Args:
        files: content by name.
        where: name for messages.

    Raises:
        WeightsError: it is no text.
    """
    if "chat_template.jinja" in files:
        return _text(files["chat_template.jinja"], f"{where}/chat_template.jinja")
    for name in ("chat_template.json", "tokenizer_config.json"):
        template = parse_json(files[name], f"{where}/{name}").get("chat_template") if name in files else None
        if isinstance(template, list):  # several templates by name
            named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
            template = named.get("default")
        if isinstance(template, str):
            return template
        if template is not None:
            raise WeightsError(f"{where}/{name}: chat_template is {shown(template)}; expected text")
    return None


def tokenizer_json(files: Mapping[str, bytes], where: str) -> str | None:
    """The text of `tokenizer.json` among the files, or None."""
    return _text(files["tokenizer.json"], f"{where}/tokenizer.json") if "tokenizer.json" in files else None


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise WeightsError(f"{where}: no UTF-8 text ({error}); download it again") from error
