"""The small files beside a model's weights: tokenizer, chat template, settings of generation."""

from pathlib import Path

from agentrl_jax.models.io.local_files import member, read_bytes

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
