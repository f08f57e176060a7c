"""Folders of safetensors files against tensors in Hugging Face's layout."""

import json
import tracemalloc

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hf_models import FAMILIES, LAYER_NAMES, config_of, slow_logits, tensors_of, write_folder
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from agentrl_jax.models import decoder
from agentrl_jax.models.io import hf_config, load
from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.text.tokenizer_settings import read_settings


def assert_holds(params, tensors, dtype=np.float32):
    """Every array holds the tensors of its name, with matrices transposed."""
    used = set()

    def check(array, keys):
        made = [tensors[key].astype(dtype) for key in keys]
        turned = [x.T if x.ndim == 2 and "embed" not in key else x for x, key in zip(made, keys)]
        np.testing.assert_array_equal(np.asarray(array), np.stack(turned) if len(keys) > 1 else turned[0])
        assert array.dtype == dtype
        used.update(keys)

    check(params["embedding"], ["model.embed_tokens.weight"])
    check(params["final_norm"], ["model.norm.weight"])
    if "lm_head" in params:
        check(params["lm_head"], ["lm_head.weight"])
    for name, array in params["layers"].items():
        check(array, [f"model.layers.{i}.{LAYER_NAMES[name]}" for i in range(len(array))])
    assert used == set(tensors)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_load_holds_every_tensor(family, shards, tmp_path):
    config = config_of(family)
    tensors = tensors_of(config)
    loaded = load.load_pretrained(write_folder(tmp_path, config, tensors, shards))
    assert_holds(loaded.params, tensors)
    fresh = jax.eval_shape(lambda: decoder.init_params(jax.random.key(0), loaded.config.decoder))
    chex.assert_trees_all_equal_structs(fresh, loaded.params)
    assert loaded.files == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_those_of_the_file(family, tmp_path):
    """Against a slow decoder that reads the tensors by their names in the file."""
    config = config_of(family)
    tensors = tensors_of(config)
    loaded = load.load_pretrained(write_folder(tmp_path, config, tensors))
    tokens = np.random.default_rng(1).integers(0, config["vocab_size"], 9)

    @jax.jit
    def run(params, tokens):
        return decoder.logits(params, decoder.forward(params, loaded.config.decoder, tokens))

    made = run(loaded.params, jnp.asarray(tokens)[None])[0]
    np.testing.assert_allclose(made, slow_logits(config, tensors, tokens), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("kept", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_any_type_to_any_type(kept, dtype, tmp_path):
    config = config_of("llama")
    tensors = {key: x.astype(kept) for key, x in tensors_of(config).items()}
    loaded = load.load_pretrained(write_folder(tmp_path, config, tensors), dtype=dtype)
    assert_holds(loaded.params, tensors, dtype)


def test_values_beyond_float16_are_refused(tmp_path):
    config = config_of("llama")
    tensors = tensors_of(config)
    tensors["model.norm.weight"][0] = 1e6
    write_folder(tmp_path, config, tensors)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has values beyond float16"):
        load.load_pretrained(tmp_path, dtype="float16")
    loaded = load.load_pretrained(tmp_path)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has values beyond float16"):
        load.save_pretrained(tmp_path / "new", loaded.params, loaded.config, dtype="float16")


def test_unknown_type_is_refused(tmp_path):
    config = config_of("llama")
    with pytest.raises(ValueError, match="dtype is float64, expected one of float32, bfloat16"):
        load.load_pretrained(write_folder(tmp_path, config, tensors_of(config)), dtype="float64")


def test_each_device_gets_its_part(tmp_path):
    """Sharded over both axes of matrices, over layers, and replicated, in one folder of several files."""
    config = config_of("llama", vocab_size=12)
    tensors = tensors_of(config)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    specs = {
        "layers/query": PartitionSpec(None, "fsdp", "tensor"),
        "layers/down": PartitionSpec(None, "tensor", "fsdp"),
        "layers/up": PartitionSpec("fsdp", None, "tensor"),
        "embedding": PartitionSpec("tensor", "fsdp"),
        "lm_head": PartitionSpec(None, "tensor"),
    }
    asked = {}

    def sharding(config, path, shape):
        asked[path] = shape
        return NamedSharding(mesh, specs.get(path, PartitionSpec()))

    loaded = load.load_pretrained(write_folder(tmp_path, config, tensors, 2), sharding=sharding)
    assert_holds(loaded.params, tensors)
    chex.assert_shape(loaded.params["layers"]["query"].addressable_data(0), (2, 4, 2))
    assert loaded.params["layers"]["query"].sharding.spec == specs["layers/query"]
    assert asked["layers/down"] == (2, 12, 8)
    whole = load.load_pretrained(tmp_path, sharding=NamedSharding(mesh, PartitionSpec()))
    assert whole.params["embedding"].sharding.is_fully_replicated


def test_weights_are_never_held_twice(tmp_path):
    config = config_of("llama", hidden_size=256, intermediate_size=1024, num_hidden_layers=4)
    tensors = tensors_of(config)
    write_folder(tmp_path, config, tensors)
    total = sum(x.nbytes for x in tensors.values())
    del tensors
    tracemalloc.start()
    try:
        loaded = load.load_pretrained(tmp_path)
        jax.block_until_ready(loaded.params)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total < 16e6
    assert peak < 1.3 * total  # all that is on a CPU device may be NumPy's memory


@pytest.mark.parametrize("shard_bytes", [10**9, 1500])
@pytest.mark.parametrize("family", FAMILIES)
def test_saving_restores_the_file(family, shard_bytes, tmp_path):
    config = config_of(family)
    tensors = tensors_of(config)
    loaded = load.load_pretrained(write_folder(tmp_path / "old", config, tensors))
    load.save_pretrained(tmp_path / "new", loaded.params, loaded.config, shard_bytes=shard_bytes)
    files = sorted((tmp_path / "new").glob("*.safetensors"))
    saved = {key: value for file in files for key, value in load_file(file).items()}
    assert saved.keys() == tensors.keys()
    for key, value in tensors.items():
        np.testing.assert_array_equal(saved[key], value)
    with safe_open(files[0], framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
    if shard_bytes == 1500:
        index = json.loads((tmp_path / "new" / "model.safetensors.index.json").read_text())
        assert index["metadata"] == {"total_size": sum(x.nbytes for x in tensors.values())}
        assert set(index["weight_map"]) == set(tensors)
        assert len(files) == int(files[0].stem.split("-")[-1]) > 1
        largest = max(x.nbytes for x in tensors.values())
        assert all(file.stat().st_size < max(1500, largest) + 2500 for file in files)
    else:
        assert [file.name for file in files] == ["model.safetensors"]
    again = load.load_pretrained(tmp_path / "new")
    assert again.config == loaded.config
    chex.assert_trees_all_equal(again.params, loaded.params)
    expected = config | {"torch_dtype": "float32"}
    if rope := expected.pop("rope_parameters", None):  # what transformers 4 reads, too
        expected |= {"rope_theta": rope["rope_theta"], "rope_scaling": None}
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == expected


def test_saving_in_another_type(tmp_path):
    config = config_of("qwen3")
    loaded = load.load_pretrained(write_folder(tmp_path / "old", config, tensors_of(config)))
    load.save_pretrained(tmp_path / "new", loaded.params, loaded.config, dtype="bfloat16")
    assert_holds(
        load.load_pretrained(tmp_path / "new", dtype="bfloat16").params,
        tensors_of(config),
        np.dtype(ml_dtypes.bfloat16),
    )
    assert json.loads((tmp_path / "new" / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    config = config_of("llama")
    loaded = load.load_pretrained(write_folder(tmp_path / "old", config, tensors_of(config)))

    def full(path, *args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agentrl_jax.models.io.safetensors_files.save_file", full)
    with pytest.raises(WeightsError, match=r"new: cannot be written \(No space left on device\)"):
        load.save_pretrained(tmp_path / "new", loaded.params, loaded.config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]
    with pytest.raises(WeightsError, match="old: exists and is not an empty folder"):
        load.save_pretrained(tmp_path / "old", loaded.params, loaded.config)


def test_the_library_reports_a_full_disk_in_its_own_way(tmp_path, monkeypatch):
    config = config_of("llama")
    loaded = load.load_pretrained(write_folder(tmp_path / "old", config, tensors_of(config)))

    def full(path, *args, **kwargs):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("agentrl_jax.models.io.safetensors_files.save_file", full)
    with pytest.raises(WeightsError, match=r"model.safetensors: cannot be written \(.*No space left on device"):
        load.save_pretrained(tmp_path / "new", loaded.params, loaded.config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]


def test_parameters_that_do_not_fit_are_not_saved(tmp_path):
    config = config_of("llama")
    loaded = load.load_pretrained(write_folder(tmp_path / "old", config, tensors_of(config)))
    wrong = {**loaded.params, "layers": loaded.params["layers"] | {"query_lora_a": jnp.zeros((2, 8, 1))}}
    with pytest.raises(WeightsError, match="unexpected layers/query_lora_a"):
        load.save_pretrained(tmp_path / "new", wrong, loaded.config)


def test_tokenizer_files_go_with_the_model(tmp_path):
    config = config_of("llama")
    write_folder(tmp_path / "old", config, tensors_of(config))
    templates = [{"name": "tool", "template": "a"}, {"name": "default", "template": "b"}]
    contents = {
        "tokenizer.json": "{}",
        "tokenizer_config.json": json.dumps({"chat_template": templates}),
        "generation_config.json": "{}",
    }
    for name, text in contents.items():
        (tmp_path / "old" / name).write_text(text)
    (tmp_path / "old" / "modeling.py").write_text("code")
    loaded = load.load_pretrained(tmp_path / "old")
    assert loaded.files == {name: text.encode() for name, text in contents.items()}
    assert read_settings(loaded.files, "old").template.source == "b"
    load.save_pretrained(tmp_path / "new", loaded.params, loaded.config, files=loaded.files)
    names = {path.name for path in (tmp_path / "new").iterdir()}
    assert names == {*contents, "config.json", "model.safetensors"}
    for name, text in (("chat_template.json", '{"chat_template": "c"}'), ("chat_template.jinja", "d")):
        (tmp_path / "new" / name).write_text(text)
        files = load.load_pretrained(tmp_path / "new").files
        assert read_settings(files, "new").template.source == ("d" if name.endswith("jinja") else "c")


def test_old_buffers_and_an_equal_tied_head_are_let_pass(tmp_path):
    config = config_of("llama", tie_word_embeddings=True)
    tensors = tensors_of(config)
    extra = {
        "lm_head.weight": tensors["model.embed_tokens.weight"].copy(),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(1, np.float32),
    }
    loaded = load.load_pretrained(write_folder(tmp_path, config, tensors | extra))
    assert_holds(loaded.params, tensors)
    extra["lm_head.weight"][3, 2] += 1e-3
    write_folder(tmp_path, config, tensors | extra)
    with pytest.raises(WeightsError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight although"):
        load.load_pretrained(tmp_path)


def test_all_that_does_not_fit_is_listed_at_once(tmp_path):
    config = config_of("llama")
    tensors = tensors_of(config)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(8, np.float32)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].copy()
    with pytest.raises(WeightsError) as caught:
        load.load_pretrained(write_folder(tmp_path, config, tensors))
    assert (
        "missing model.norm.weight | unexpected model.layers.0.self_attn.q_proj.bias | "
        "wrong shape: lm_head.weight is [10, 8], expected [11, 8]"
    ) in str(caught.value)


def test_a_config_of_a_larger_model_allocates_nothing(tmp_path):
    config = config_of("llama")
    write_folder(tmp_path, config, tensors_of(config))
    large = config_of("llama", num_hidden_layers=1024, hidden_size=2**18, vocab_size=2**24)
    (tmp_path / "config.json").write_text(json.dumps(large))
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError, match=r"missing .* and \d+ more \| wrong shape"):
            load.load_pretrained(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_a_config_is_hashable():
    assert len({hf_config.parse_config(config_of("llama")), hf_config.parse_config(config_of("llama"))}) == 1
