import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentrl_jax.errors import BadValue
from agentrl_jax.text import tokenizer
from agentrl_jax.text.canonical import build_canonical, encode_row, splitting
from agentrl_jax.text.pieces import Special, encode_pieces

WORDS = ("the", "box", " is", "You", "'re", "'s", "'S", "'ll", "'", "##", "_", "√", "Ünï", "42", "7", " ", "  ", "\n")
TEXT = ("\n\n", " \n ", "\t", "\r\n", "(", "((", ") ", "->", "Turn 1:\n", "x", "don't ", "<answer>", "</", "||", "…")
PIECES = (*WORDS, *TEXT, Special("<|end|>"))
PARTS, BYTES = 12, 150
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|")
"""Regular expressions of the published tokenizers."""


def trained(pattern=""):
    backend = Tokenizer(models.BPE())
    split = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pattern else []
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not pattern)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*split, bytes_only]) if pattern else bytes_only
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken("<|end|>", special=True, normalized=False)],
        show_progress=False,
    )
    draw = np.random.default_rng(7)
    backend.train_from_iterator(["".join(draw.choice(WORDS + TEXT, size=30)) for _ in range(400)], trainer)
    return tokenizer.from_json(backend.to_str(), pad="<|end|>")


@pytest.mark.parametrize("name", ["small", "gpt2", "llama-3"])
def test_rows_are_encoded_as_the_tokenizer_encodes_their_text(name, small):
    known = small if name == "small" else trained({"gpt2": "", "llama-3": LLAMA3}[name])
    table = build_canonical(known, PIECES, BYTES)
    draw = np.random.default_rng(0)
    ids = draw.integers(-1, len(PIECES), size=(500, PARTS))
    encode = jax.jit(jax.vmap(lambda row: encode_row(table, row, BYTES)))
    tokens, length = jax.device_get(encode(jnp.asarray(ids, jnp.int32)))
    for row, written, count in zip(ids, tokens, length):
        pieces = [PIECES[i] for i in row if i >= 0]
        assert written[:count].tolist() == encode_pieces(known, pieces, joined=True), pieces
        assert (written[count:] == known.pad_id).all()


def test_other_splittings_have_no_canonical_encoder():
    plain = {"type": "ByteLevel"}
    for layout in ({"normalizer": {"type": "NFKC"}}, {"pre_tokenizer": plain | {"add_prefix_space": True}}):
        with pytest.raises(BadValue):
            splitting.from_layout({"pre_tokenizer": plain} | layout)


def test_splittings_differ_in_the_digits_of_a_word():
    """As in Qwen's tokenizers one, as in Llama 3's three."""
    plain = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    for digits, most in (("", 1), ("{1,3}", 3)):
        split = {"type": "Split", "pattern": {"Regex": splitting._SPLIT.format(digits=digits)}, "behavior": "Isolated"}
        for invert, refused in ((False, False), (True, True)):
            layout = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split | {"invert": invert}, plain]}}
            if refused:
                with pytest.raises(BadValue):
                    splitting.from_layout(layout)
            else:
                assert splitting.from_layout(layout) == splitting.Splitting(splitting.CL100K, max_digits=most)
