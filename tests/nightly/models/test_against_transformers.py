"""The same logits as transformers' models on PyTorch, for reading and writing; skipped if PyTorch is not installed.

It needs `torch`, `transformers` and, for adapters, `peft`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.models import decoder, lora
from agentrl_jax.models.io import load, peft_files

torch = pytest.importorskip("torch", reason="torch is not installed; it runs the models that ours are compared with")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
KINDS = {"sliding": "sliding_attention", "full": "full_attention"}
CASES = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True, "head_dim": 16}),
    "llama biased": ("llama", {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-5}),
    "llama 3": ("llama", {"rope_parameters": LLAMA3}),
    "qwen2": ("qwen2", {"rope_theta": 1e6}),
    "qwen2 windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3 windows": (
        "qwen3",
        {
            "attention_bias": True,
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": [KINDS["sliding"], KINDS["full"], KINDS["sliding"]],
        },
    ),
    "mistral": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "mistral window": ("mistral", {"sliding_window": 3}),
}


def random_model(case: str):
    """A model of transformers in which every parameter matters."""
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


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(0, SIZES["vocab_size"], (2, 19))


def theirs(model, tokens) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(tokens)).logits.numpy()


def ours(params, config, tokens) -> np.ndarray:
    return np.asarray(decoder.logits(params, decoder.forward(params, config, jnp.asarray(tokens))))


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_both_ways(case, tokens, tmp_path):
    model = random_model(case)
    model.save_pretrained(tmp_path / "theirs")
    loaded = load.load_pretrained(tmp_path / "theirs")
    expected = theirs(model, tokens)
    np.testing.assert_allclose(ours(loaded.params, loaded.config.decoder, tokens), expected, atol=2e-4, rtol=1e-4)

    load.save_pretrained(tmp_path / "ours", loaded.params, loaded.config, shard_bytes=20_000)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    np.testing.assert_array_equal(theirs(again, tokens), expected)


@pytest.mark.parametrize("case", CASES)
def test_models_of_ours_are_read(case, tokens, tmp_path):
    """With a configuration written by this package, not copied from a file."""
    from agentrl_jax.models.io import hf_config_out

    random_model(case).save_pretrained(tmp_path / "theirs")
    loaded = load.load_pretrained(tmp_path / "theirs")
    config = hf_config_out.describe(loaded.config.decoder, max_positions=64)
    load.save_pretrained(tmp_path / "ours", loaded.params, config)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    expected = ours(loaded.params, config.decoder, tokens)
    np.testing.assert_allclose(theirs(again, tokens), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("stabilized", [False, True])
def test_adapters_equal_both_ways(tokens, tmp_path, stabilized):
    peft = pytest.importorskip("peft")
    model = random_model("qwen2")
    model.save_pretrained(tmp_path / "base")
    base = load.load_pretrained(tmp_path / "base")
    settings = peft.LoraConfig(
        r=4,
        lora_alpha=6,
        target_modules=["q_proj", "o_proj", "down_proj"],
        use_rslora=stabilized,
        task_type="CAUSAL_LM",
    )
    adapted = peft.get_peft_model(model, settings).eval()
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.3)
    adapted.save_pretrained(tmp_path / "theirs")
    expected = theirs(adapted, tokens)
    adapter, size = peft_files.load_adapter(tmp_path / "theirs", base.config.decoder)
    assert set(size.targets) == {"query", "output", "down"}
    attached = lora.attach(base.params, adapter, size)
    np.testing.assert_allclose(ours(attached, base.config.decoder, tokens), expected, atol=2e-4, rtol=1e-4)

    doubled = jax.tree.map(lambda x: 2 * x, adapter)
    peft_files.save_adapter(tmp_path / "ours", doubled, size, base.config.decoder, base_model="base")
    fresh = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base", attn_implementation="eager")
    again = peft.PeftModel.from_pretrained(fresh, str(tmp_path / "ours")).eval()
    attached = lora.attach(base.params, doubled, size)
    np.testing.assert_allclose(theirs(again, tokens), ours(attached, base.config.decoder, tokens), atol=2e-4, rtol=1e-4)
