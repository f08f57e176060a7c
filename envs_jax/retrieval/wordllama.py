"""The embeddings of the installed package WordLlama; nothing is downloaded."""

import importlib.util
import logging
from pathlib import Path
from typing import Any

from envs_jax.errors import BadValue

_ADVICE = "install the extra `search`: pip install 'agentrl_jax[search]'"


def load_wordllama() -> Any:
    """The embeddings of 256 numbers, with their tokenizer; BadValue if the package or a file of it is missing."""
    found = importlib.util.find_spec("wordllama")
    if found is None or not found.submodule_search_locations:
        raise BadValue(f"the package wordllama is not installed; {_ADVICE}", "wordllama")
    folder = Path(found.submodule_search_locations[0])
    root = logging.getLogger()
    before = root.level, root.handlers[:]
    try:
        module = importlib.import_module("wordllama")
        return module.WordLlama.load(cache_dir=folder, disable_download=True)
    except (ImportError, FileNotFoundError) as error:
        raise BadValue(f"the package wordllama cannot be loaded ({error}); {_ADVICE}", "wordllama") from error
    finally:
        root.setLevel(before[0])  # the package turns on INFO for the whole process
        root.handlers[:] = before[1]
