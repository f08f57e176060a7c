"""Canonical encoding on the device against the tokenizers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from agentrl_jax.text import tokenizer
from agentrl_jax.text.canonical import build_canonical, encode_row
from agentrl_jax.text.pieces import Special, encode_pieces

WORDS = ("the", "box", " is", "You", "'re", "'s", "'S", "'ll", "'", "##", "_", "√", "Ünï", "42", "7", " ", "  ", "\n")
TEXT = ("\n\n", " \n ", "\t", "\r\n", "(", "((", ") ", "->", "Turn 1:\n", "x", "don't ", "<answer>", "</", "||", "…")
PIECES = (*WORDS, *TEXT, Special("<|end|>"))
PARTS, BYTES = 12, 150
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Regular expressions of the published tokenizers."""


def cl100k(pattern):
    """A tokenizer that splits by a regular expression."""
    backend = tokenizers.Tokenizer(models.BPE())
    pattern = tokenizers.Regex(pattern)
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pattern, "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    backend.decoder = decoders.ByteLevel()
    return trained(backend)


def gpt2():
    """A tokenizer that splits as GPT-2 does."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return trained(backend)


def trained(backend):
    special = AddedToken("<|end|>", special=True, normalized=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[special],
        show_progress=False,
    )
    draw = np.random.default_rng(7)
    words = WORDS + TEXT
    backend.train_from_iterator(["".join(draw.choice(words, size=30)) for _ in range(400)], trainer)
    return tokenizer.from_json(backend.to_str(), pad="<|end|>")


@pytest.mark.parametrize("name", ["small", "gpt2", "qwen", "llama-3"])
def test_rows_are_encoded_as_the_tokenizer_encodes_their_text(name, small):
    """A thousand texts of twelve random pieces, special tokens among them."""
    make = {"small": lambda: small, "gpt2": gpt2, "qwen": lambda: cl100k(QWEN), "llama-3": lambda: cl100k(LLAMA3)}
    known = make[name]()
    table = build_canonical(known, PIECES, BYTES)
    draw = np.random.default_rng(0)
    ids = draw.integers(-1, len(PIECES), size=(1000, PARTS))
    encode = jax.jit(jax.vmap(lambda row: encode_row(table, row, BYTES)))
    tokens, length = jax.device_get(encode(jnp.asarray(ids, jnp.int32)))
    for row, written, count in zip(ids, tokens, length):
        pieces = [PIECES[i] for i in row if i >= 0]
        assert written[:count].tolist() == encode_pieces(known, pieces, joined=True), pieces
        assert (written[count:] == known.pad_id).all()
