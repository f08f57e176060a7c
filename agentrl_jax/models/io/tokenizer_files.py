"""The small files next to a model's weights: tokenizer, chat template, generation settings."""

from pathlib import Path

from agentrl_jax.models.io.local_files import path_inside, read_bytes

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
"""Files that are loaded and saved together with a model."""


def read_files(folder: Path) -> dict[str, bytes]:
    """Contents of the files in `NAMES` that the folder contains."""
    paths = {name: path_inside(folder, name) for name in NAMES}
    return {name: read_bytes(path) for name, path in paths.items() if path.is_file()}
