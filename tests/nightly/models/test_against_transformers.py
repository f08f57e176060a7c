"""The same logits as transformers' models on PyTorch, for reading and writing; skipped if PyTorch is not installed.

It needs `torch`, `transformers` and, for adapters, `peft`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_models import LLAMA3

from agentrl_jax.models import decoder, lora
from agentrl_jax.models.io import hf_config_out, load, peft_files

torch = pytest.importorskip("torch", reason="torch is not installed; it runs the models that ours are compared with")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
SLIDING, FULL = "sliding_attention", "full_attention"
WINDOWS = {"use_sliding_window": True, "layer_types": [SLIDING, FULL, SLIDING]}
CASES = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True, "head_dim": 16}),
    "llama biased": ("llama", {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-5}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3 | {"rope_theta": 100.0}}),
    "qwen2": ("qwen2", {"rope_theta": 1e6}),
    "qwen2 windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3 windows": ("qwen3", {"attention_bias": True, "sliding_window": 5, **WINDOWS}),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral window": ("mistral", {"sliding_window": 3}),
}
TOKENS = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (2, 19))


def random_model(case: str):
    kind, changes = CASES[case]
    config = transformers.AutoConfig.for_model(kind, **SIZES, **changes)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.normal_(std=0.3)
            if "norm" in name:
                weight.add_(1.0)
    return model


def theirs(model) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(TOKENS)).logits.numpy()


def ours(params, config) -> np.ndarray:
    return np.asarray(decoder.logits(params, decoder.forward(params, config, jnp.asarray(TOKENS))))


def their_model(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


close = functools.partial(np.testing.assert_allclose, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_both_ways(case, tmp_path):
    """Of a model with the configuration of its file, and with one written by this package."""
    model = random_model(case)
    model.save_pretrained(tmp_path / "theirs")
    loaded = load.load_pretrained(tmp_path / "theirs")
    expected = theirs(model)
    close(ours(loaded.params, loaded.config.decoder), expected)
    load.save_pretrained(tmp_path / "ours", loaded.params, loaded.config, shard_bytes=20_000)
    np.testing.assert_array_equal(theirs(their_model(tmp_path / "ours")), expected)
    config = hf_config_out.describe(loaded.config.decoder, max_positions=64)
    load.save_pretrained(tmp_path / "described", loaded.params, config)
    close(theirs(their_model(tmp_path / "described")), expected)


@pytest.mark.parametrize("stabilized", [False, True])
def test_adapters_equal_both_ways(tmp_path, stabilized):
    peft = pytest.importorskip("peft")
    model = random_model("qwen2")
    model.save_pretrained(tmp_path / "base")
    base = load.load_pretrained(tmp_path / "base")
    targets = ["q_proj", "o_proj", "down_proj"]
    settings = peft.LoraConfig(r=4, lora_alpha=6, target_modules=targets, use_rslora=stabilized, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, settings).eval()
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.3)
    adapted.save_pretrained(tmp_path / "theirs")
    expected = theirs(adapted)
    adapter, size = peft_files.load_adapter(tmp_path / "theirs", base.config.decoder)
    assert set(size.targets) == {"query", "output", "down"}
    attached = lora.attach(base.params, adapter, size)
    close(ours(attached, base.config.decoder), expected)

    doubled = jax.tree.map(lambda x: 2 * x, adapter)
    peft_files.save_adapter(tmp_path / "ours", doubled, size, base.config.decoder, base_model="base")
    again = peft.PeftModel.from_pretrained(their_model(tmp_path / "base"), str(tmp_path / "ours")).eval()
    attached = lora.attach(base.params, doubled, size)
    close(theirs(again), ours(attached, base.config.decoder))
