import json
import tracemalloc
from unittest import mock

import chex
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hf_models import FAMILIES, LAYER_NAMES, config_of, tensors_of, write_folder
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from agentrl_jax.errors import BadValue
from agentrl_jax.models.io import load
from agentrl_jax.models.io.errors import WeightsError
from agentrl_jax.text.tokenizer_settings import read_settings


def assert_holds(params, tensors, dtype=np.float32):
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


def loaded_of(folder, family, *, tensors=None, extra=None, shards=1, dtype="float32", **changes):
    config = config_of(family, **changes)
    tensors = tensors_of(config) if tensors is None else tensors
    written = write_folder(folder, config, tensors | (extra or {}), shards)
    return config, tensors, load.load_pretrained(written, dtype=dtype)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
@pytest.mark.parametrize("kept", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_any_type_to_any_type(kept, dtype, tmp_path):
    tensors = {key: x.astype(kept) for key, x in tensors_of(config_of("llama")).items()}
    _, _, loaded = loaded_of(tmp_path / "old", "llama", tensors=tensors, dtype=dtype)
    assert_holds(loaded.params, tensors, dtype)
    load.save_pretrained(tmp_path / "new", loaded.params, loaded.config, dtype=kept)
    again = load.load_pretrained(tmp_path / "new", dtype=dtype)
    assert_holds(again.params, {key: x.astype(dtype).astype(kept) for key, x in tensors.items()}, dtype)
    name = json.loads((tmp_path / "new" / "config.json").read_text())["torch_dtype"]
    assert name == load_file(tmp_path / "new" / "model.safetensors")["model.norm.weight"].dtype.name == kept.__name__


def test_what_a_type_cannot_hold_and_other_types_are_refused(tmp_path):
    tensors = tensors_of(config_of("llama"))
    tensors["model.norm.weight"][0] = 1e6
    _, _, loaded = loaded_of(tmp_path, "llama", tensors=tensors)
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has values beyond float16"):
        load.load_pretrained(tmp_path, dtype="float16")
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has values beyond float16"):
        load.save_pretrained(tmp_path / "new", loaded.params, loaded.config, dtype="float16")
    with pytest.raises(BadValue) as refused:
        load.load_pretrained(tmp_path, dtype="float64")
    assert (refused.value.key, refused.value.value) == ("dtype", "float64")


def test_each_device_gets_its_part(tmp_path):
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


@pytest.mark.parametrize("shard_bytes", [10**9, 1500])
@pytest.mark.parametrize("family", FAMILIES)
def test_saving_restores_the_file(family, shard_bytes, tmp_path):
    config, tensors, loaded = loaded_of(tmp_path / "old", family)
    load.save_pretrained(tmp_path / "new", loaded.params, loaded.config, shard_bytes=shard_bytes)
    files = sorted((tmp_path / "new").glob("*.safetensors"))
    saved = {key: value for file in files for key, value in load_file(file).items()}
    chex.assert_trees_all_equal(saved, tensors)
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
    assert {again.config} == {loaded.config}
    chex.assert_trees_all_equal(again.params, loaded.params)
    expected = config | {"torch_dtype": "float32"}
    if rope := expected.pop("rope_parameters", None):  # what transformers 4 reads, too
        expected |= {"rope_theta": rope["rope_theta"], "rope_scaling": None}
    assert json.loads((tmp_path / "new" / "config.json").read_text()) == expected


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    _, _, loaded = loaded_of(tmp_path / "old", "llama")
    for error in (OSError(28, "No space left"), SafetensorError("I/O error: No space left (os error 28)")):
        with monkeypatch.context() as patched:
            patched.setattr("agentrl_jax.models.io.safetensors_files.save_file", mock.Mock(side_effect=error))
            with pytest.raises(WeightsError, match=r"cannot be written \(.*No space left"):
                load.save_pretrained(tmp_path / "new", loaded.params, loaded.config)
    wrong = {**loaded.params, "layers": loaded.params["layers"] | {"query_lora_a": jnp.zeros((2, 8, 1))}}
    with pytest.raises(WeightsError, match="unexpected layers/query_lora_a"):
        load.save_pretrained(tmp_path / "new", wrong, loaded.config)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]
    with pytest.raises(WeightsError, match="old: exists and is not an empty folder"):
        load.save_pretrained(tmp_path / "old", loaded.params, loaded.config)


def test_tokenizer_files_go_with_the_model(tmp_path):
    _, _, loaded = loaded_of(tmp_path / "old", "llama")
    templates = [{"name": "tool", "template": "a"}, {"name": "default", "template": "b"}]
    settings = json.dumps({"chat_template": templates})
    contents = {"tokenizer.json": "{}", "tokenizer_config.json": settings, "generation_config.json": "{}"}
    for name, text in (contents | {"modeling.py": "code"}).items():
        (tmp_path / "old" / name).write_text(text)
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
    tied = tensors_of(config_of("llama", tie_word_embeddings=True))
    head = tied["model.embed_tokens.weight"].copy()
    extra = {"lm_head.weight": head, "model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(1, np.float32)}
    _, tensors, loaded = loaded_of(tmp_path, "llama", extra=extra, tie_word_embeddings=True)
    assert_holds(loaded.params, tensors)
    head[3, 2] += 1e-3
    with pytest.raises(WeightsError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight"):
        loaded_of(tmp_path, "llama", extra=extra, tie_word_embeddings=True)


def test_all_that_does_not_fit_is_listed_at_once(tmp_path):
    tensors = tensors_of(config_of("llama"))
    del tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.zeros(8, np.float32)
    tensors["lm_head.weight"] = tensors["lm_head.weight"][:-1].copy()
    with pytest.raises(WeightsError) as caught:
        loaded_of(tmp_path, "llama", tensors=tensors)
    wrong = "wrong shape: lm_head.weight is [10, 8], expected [11, 8]"
    parts = ("model.safetensors", "missing model.norm.weight", "unexpected model.layers.0.self_attn.q_proj.bias")
    for part in (*parts, wrong):
        assert part in str(caught.value)


def test_weights_are_never_held_twice_and_a_config_of_a_larger_model_allocates_nothing(tmp_path):
    config = config_of("llama", hidden_size=256, intermediate_size=1024, num_hidden_layers=4)
    tensors = tensors_of(config)
    write_folder(tmp_path, config, tensors)
    total = sum(x.nbytes for x in tensors.values())
    del tensors
    large = config_of("llama", num_hidden_layers=1024, hidden_size=2**18, vocab_size=2**24)
    tracemalloc.start()
    try:  # all that is on a CPU device may be NumPy's memory
        jax.block_until_ready(load.load_pretrained(tmp_path).params)
        assert tracemalloc.get_traced_memory()[1] < 1.3 * total
        (tmp_path / "config.json").write_text(json.dumps(large))
        tracemalloc.reset_peak()
        with pytest.raises(WeightsError, match=r"missing .* and \d+ more \| wrong shape"):
            load.load_pretrained(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_only_a_folder_of_the_hub_s_cache_has_a_name_on_the_hub(tmp_path):
    for name, expected in (("snapshots", ("some/model", "0123")), ("refs", None), ("zips", None)):
        folder = tmp_path / "models--some--model" / name / "0123"
        folder.mkdir(parents=True)
        assert load.name_on_hub(str(folder), "main") == (expected or (str(folder), None))
    assert load.name_on_hub("some/model", "main") == ("some/model", "main")
