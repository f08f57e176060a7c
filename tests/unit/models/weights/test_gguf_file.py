import importlib.util
import json

import chex
import jax
import numpy as np
import pytest
from hf_models import config_of, tensors_of, write_folder
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

gguf = pytest.importorskip("gguf", reason="gguf is not installed; it writes and reads GGUF files")

from gguf_models import write_gguf  # noqa: E402

from agentrl_jax.models.io import gguf_format, load  # noqa: E402
from agentrl_jax.models.io.errors import WeightsError  # noqa: E402
from agentrl_jax.models.shape import Llama3Scaling  # noqa: E402
from agentrl_jax.text import tokenizer  # noqa: E402

Kind = gguf.GGMLQuantizationType


def write(folder, family, *, settings=None, raw=None, divisors=None, **changes):
    config = config_of(family, **changes)
    return write_gguf(folder / "m.gguf", config, tensors_of(config), settings=settings, raw=raw, divisors=divisors)


def of_tokenizer(**settings):
    return {f"tokenizer.ggml.{name}": value for name, value in settings.items()} | {"tokenizer.ggml.merges": ["z z"]}


BIASED = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}


@pytest.mark.parametrize(
    ("family", "changes"), [("llama", {}), ("llama", BIASED), ("qwen2", {"num_key_value_heads": 1}), ("qwen3", {})]
)
def test_weights_equal_those_of_safetensors(family, changes, tmp_path):
    """The permutation of rows of llama's queries and keys is undone; rows of Qwen stay."""
    config = config_of(family, **changes)
    tensors = tensors_of(config)
    expected = load.load_pretrained(write_folder(tmp_path / "hf", config, tensors))
    loaded = load.load_pretrained(write_gguf(tmp_path / "model.gguf", config, tensors))
    assert loaded.config.decoder == expected.config.decoder
    assert (loaded.config.model_type, loaded.config.max_positions) == (config["model_type"], 64)
    chex.assert_trees_all_equal(loaded.params, expected.params)
    load.save_pretrained(tmp_path / "new", loaded.params, loaded.config, files=loaded.files)
    again = load.load_pretrained(tmp_path / "new")
    assert (again.config, again.files) == (loaded.config, loaded.files)
    described = load.load_pretrained(tmp_path / "model.gguf", weights=False)
    assert (described.config, described.files, described.params) == (loaded.config, loaded.files, {})


@pytest.mark.parametrize("name", gguf_format.TENSOR_TYPES)
def test_every_kind_of_numbers(name, tmp_path):
    kind = Kind[name]
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(0).integers(0, 60, (256, 256 // block * block_bytes), dtype=np.uint8)
    values = gguf.dequantize(raw, kind)
    assert np.isfinite(values).all()
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "num_attention_heads": 2}
    path = write(tmp_path, "qwen2", raw={"model.layers.0.mlp.up_proj.weight": (raw, kind)}, **sizes)
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

    def sharding(config, path, shape):
        return NamedSharding(mesh, PartitionSpec(None, "a", "b") if path == "layers/up" else PartitionSpec())

    up = load.load_pretrained(path, sharding=sharding).params["layers"]["up"]
    np.testing.assert_array_equal(np.asarray(up)[0], values.T)
    raw = {"model.layers.0.mlp.up_proj.weight": (np.zeros((256, 66), np.uint8), Kind.IQ2_XXS)}
    path = write(tmp_path, "llama", intermediate_size=256, hidden_size=256, raw=raw)
    with pytest.raises(WeightsError, match=r"'blk\.0\.ffn_up\.weight' has type IQ2_XXS"):
        load.load_pretrained(path)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_frequencies_are_recognized(factor, tmp_path):
    scaling = Llama3Scaling(factor=factor, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=8192)
    turns = 8192 / (2 * np.pi * 5e5 ** (np.arange(0, 128, 2) / 128))
    smooth = np.clip((turns - 1.0) / (4.0 - 1.0), 0.0, 1.0)
    divisors = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    assert 1.0 < divisors[len(divisors) * 2 // 3] <= factor
    options = {"rope_theta": 5e5, "hidden_size": 512, "divisors": divisors}
    assert load.load_pretrained(write(tmp_path, "llama", **options)).config.decoder.rope_scaling == scaling
    divisors[40] *= 1.01
    for broken in (divisors, divisors[:3]):
        with pytest.raises(WeightsError, match=r"rope_freqs\.weight"):
            load.load_pretrained(write(tmp_path, "llama", **options | {"divisors": broken}))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"llama.block_count": 1}, "unexpected blk.1.attn_norm.weight"),
        ({"llama.vocab_size": 12}, "wrong shape: token_embd.weight is [11, 8], expected [12, 8]"),
        ({"llama.attention.head_count_kv": 3}, "4 heads"), ({"tokenizer.ggml.model": "llama"}, "SentencePiece"),
        ({"tokenizer.ggml.tokens": ["a"] * 11}, "the token 'a' occurs twice"),
        ({"tokenizer.ggml.tokens": [*"abcdefghij", "a b"]}, "the token 'a b'"),
        ({"tokenizer.ggml.token_type": [1]}, "a type for each of 11 tokens"),
        ({"tokenizer.ggml.token_type": [6] * 11}, "tokens of type 6"),
        ({"tokenizer.ggml.merges": ["a z"]}, "the merge 'a z'"),
        ({"llama.logit_scale": 0.5}, "'llama.logit_scale': 0.5"),
        *[({key: value}, f"{key} is {value!r}") for key, value in {
            "general.architecture": "gemma2", "general.type": "adapter", "split.count": 3,
            "llama.rope.scaling.type": "yarn", "llama.expert_count": 8, "llama.attention.sliding_window": 16,
            "llama.rope.dimension_count": 1, "llama.attention.value_length": 4, "llama.block_count": 0,
            "llama.attention.head_count": [4, 4], "tokenizer.ggml.pre": "tekken", "tokenizer.ggml.tokens": "abc",
            "tokenizer.ggml.eos_token_id": 11, "tokenizer.ggml.add_eos_token": True, "tokenizer.chat_template": 3,
        }.items()],
    ],
    ids=range(25),
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(settings, words, tmp_path):
    path = write(tmp_path, "llama", settings=settings)
    with pytest.raises(WeightsError) as caught:
        load.load_pretrained(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)


TEXTS = (
    *("Hello world's   12345 x\n\n  ok", "naïve Ünïcode e\u0301 你好 😀", "  lead", "don't  STOP'RE 3.14"),
    "a\r\nb\t\tc",
)


@pytest.mark.parametrize("splitter", ["gpt-2", "smollm", "qwen2", "llama-bpe"])
def test_splitters_cut_where_the_originals_do(splitter, tmp_path):
    names = [*sorted(tokenizer.byte_alphabet().values()), "<|endoftext|>", "zz"]
    kinds = [1] * 256 + [3, 1]
    settings = of_tokenizer(pre=splitter, tokens=names, token_type=kinds, bos_token_id=256, eos_token_id=256)
    path = write(tmp_path, "llama", settings=settings, vocab_size=len(names))
    made = tokenizer.from_files(load.load_pretrained(path).files, "m.gguf")
    words = {
        "gpt-2": "Hello|Ġworld|'s|ĠĠ|Ġ12345|Ġx|ĊĊĠ|Ġok",
        "smollm": "Hello|Ġworld|'s|ĠĠĠ|1|2|3|4|5|Ġx|ĊĊĠ|Ġok",
        "qwen2": "Hello|Ġworld|'s|ĠĠ|Ġ|1|2|3|4|5|Ġx|ĊĊ|Ġ|Ġok",
        "llama-bpe": "Hello|Ġworld|'s|ĠĠ|Ġ|123|45|Ġx|ĊĊ|Ġ|Ġok",
    }
    assert "|".join(word for word, _ in made.backend.pre_tokenizer.pre_tokenize_str(TEXTS[0])) == words[splitter]
    for text in TEXTS:
        ids = made.encode(text)
        composed = "naïve Ünïcode é 你好 😀" if splitter == "qwen2" and "naïve" in text else text
        assert made.decode(ids) == composed
    with_start = made.backend.encode("a").ids
    assert (with_start[0] == 256) == (splitter == "llama-bpe")


def test_kinds_of_tokens(tmp_path):
    """Control tokens are special, user-defined tokens are never split but ordinary, and padding is no token."""
    names = [*sorted(tokenizer.byte_alphabet().values()), "<tool>", "<|im_end|>", "zz", "[PAD259]", "[PAD260]"]
    kinds = [1] * 256 + [4, 3, 1, 5, 5]
    settings = of_tokenizer(pre="qwen2", tokens=names, token_type=kinds, eos_token_id=257, padding_token_id=259)
    settings["tokenizer.chat_template"] = "{{ messages }}"
    loaded = load.load_pretrained(write(tmp_path, "qwen2", settings=settings, vocab_size=len(names)))
    made = tokenizer.from_files(loaded.files, "m.gguf", pad="<|im_end|>")
    assert made.encode("<tool>") == [256]
    assert made.special_ids == {257}
    assert made.vocab_size == 259
    assert made.template.source == "{{ messages }}"
    assert json.loads(loaded.files["tokenizer_config.json"])["eos_token"] == "<|im_end|>"
    assert loaded.config.raw["eos_token_id"] == 257


def test_without_the_package(tmp_path, monkeypatch):
    path = write(tmp_path, "llama")
    monkeypatch.setitem(importlib.util.sys.modules, "gguf", None)
    with pytest.raises(WeightsError, match="needs the package gguf; pip install"):
        load.load_pretrained(path)
