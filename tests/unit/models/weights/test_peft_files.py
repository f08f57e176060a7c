import json
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_models import PEFT_SETTINGS, adapter_tensors, config_of, write_adapter
from safetensors.numpy import load_file

from agentrl_jax.models import lora
from agentrl_jax.models.io import hf_config, peft_files
from agentrl_jax.models.io.errors import WeightsError

DECODER = hf_config.parse_config(config_of("qwen2")).decoder


@pytest.mark.parametrize("stabilized", [False, True])
def test_the_product_and_the_files_are_those_of_peft(stabilized, tmp_path):
    """x A^T B^T times alpha / r, or alpha / sqrt(r) if rank-stabilized."""
    tensors = adapter_tensors()
    adapter, size = peft_files.load_adapter(write_adapter(tmp_path / "old", tensors, use_rslora=stabilized), DECODER)
    assert size.targets == ("query", "down")
    assert size.scale == pytest.approx(6 / math.sqrt(3) if stabilized else 2.0)
    x = np.random.default_rng(1).standard_normal((4, 12)).astype(np.float32)
    at = "base_model.model.model.layers.1.mlp.down_proj"
    expected = x @ tensors[f"{at}.lora_A.weight"].T @ tensors[f"{at}.lora_B.weight"].T * size.scale
    attached = lora.attach({"layers": {}}, adapter, size)["layers"]
    made = x @ np.asarray(attached["down_lora_a"])[1] @ np.asarray(attached["down_lora_b"])[1]
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)
    # Saving writes PEFT's names.
    peft_files.save_adapter(tmp_path / "new", adapter, size, DECODER, base_model="base")
    chex.assert_trees_all_equal(load_file(tmp_path / "new" / "adapter_model.safetensors"), tensors)
    settings = json.loads((tmp_path / "new" / "adapter_config.json").read_text())
    kept = ("r", "use_rslora", "bias", "peft_type", "task_type")
    assert {key: settings[key] for key in kept} == {key: PEFT_SETTINGS[key] for key in kept}
    assert (settings["lora_alpha"], settings["target_modules"]) == (3 * size.scale, ["down_proj", "q_proj"])
    assert peft_files.load_adapter(tmp_path / "new", DECODER)[1] == size


def test_an_adapter_of_every_target_comes_back(tmp_path):
    size = lora.LoraConfig(rank=3, alpha=6.0)
    shapes = jax.eval_shape(lambda: lora.init_adapter(jax.random.key(0), DECODER, size))
    draw = np.random.default_rng(2)
    adapter = jax.tree.map(lambda x: jnp.asarray(draw.standard_normal(x.shape), x.dtype), shapes)
    peft_files.save_adapter(tmp_path / "new", adapter, size, DECODER)
    again, size_again = peft_files.load_adapter(tmp_path / "new", DECODER)
    assert size_again == size
    chex.assert_trees_all_equal(again, adapter)
    settings = json.dumps(PEFT_SETTINGS | {"target_modules": "all-linear"})
    (tmp_path / "new" / "adapter_config.json").write_text(settings)
    assert set(peft_files.load_adapter(tmp_path / "new", DECODER)[1].targets) == set(lora.TARGETS)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *[({key: value}, f"{key} is {value!r}") for key, value in [
            ("use_dora", True), ("bias", "lora_only"), ("modules_to_save", ["lm_head"]), ("peft_type", None), ("r", 0),
            ("rank_pattern", {"q_proj": 4}), ("lora_alpha", -1), ("target_modules", ["q_proj", "lm_head"]),
            ("target_modules", ".*_proj"),
        ]],
        ({"new_config": {"on": True}}, "'new_config': {'on': True}"),
        ({"target_modules": ["q_proj"]}, "unexpected base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"),
        ({"target_modules": ["q_proj", "down_proj", "k_proj"]}, "missing base_model.model.model.layers.0.self_attn.k"),
        ({"r": 4}, "lora_A.weight is [3, 8], expected [4, 8]"),
    ],
    ids=range(13),
)  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(changes, words, tmp_path):
    with pytest.raises(WeightsError) as caught:
        peft_files.load_adapter(write_adapter(tmp_path, adapter_tensors(), **changes), DECODER)
    assert words in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_pickles_and_adapters_that_do_not_fit_are_refused(tmp_path):
    write_adapter(tmp_path, adapter_tensors())
    (tmp_path / "adapter_model.bin").write_bytes(b"of an older version")
    peft_files.load_adapter(tmp_path, DECODER)
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(WeightsError, match=r"adapter_model\.bin is a pickle"):
        peft_files.load_adapter(tmp_path, DECODER)
    size = lora.LoraConfig(rank=2, alpha=3.0, targets=("query",))
    wrong = {"query": {"a": jnp.zeros((2, 8, 2)), "b": jnp.zeros((2, 3, 8))}}
    with pytest.raises(WeightsError, match=r"query/b is \[2, 3, 8\], expected \[2, 2, 8\]"):
        peft_files.save_adapter(tmp_path / "new", wrong, size, DECODER)
