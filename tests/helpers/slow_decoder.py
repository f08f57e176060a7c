"""A small configuration with parameters, and its logits by a slow NumPy decoder."""

import hf_models
import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.models import decoder
from agentrl_jax.models.shape import DecoderConfig

CONFIG = DecoderConfig(
    vocab_size=23, num_layers=2, embed_dim=16, num_heads=4, num_kv_heads=2, head_dim=4, mlp_width=20,
    norm_eps=0.01, tied_embeddings=False,
)  # fmt: skip
ROWS, LENGTH = 3, 11


def lively_params(config: DecoderConfig, seed: int = 0):
    params = decoder.init_params(jax.random.key(seed), config)
    draw = np.random.default_rng(seed)
    grown = jax.tree.map(lambda x: jnp.asarray(0.2 * draw.standard_normal(x.shape), jnp.float32), params)
    norms = {name: x + 1.0 for name, x in grown["layers"].items() if name.endswith("norm")}
    return grown | {"layers": grown["layers"] | norms, "final_norm": grown["final_norm"] + 1.0}


PARAMS = lively_params(CONFIG)
TOKENS = jax.random.randint(jax.random.key(1), (ROWS, LENGTH), 0, CONFIG.vocab_size)


def slow_logits(params, config: DecoderConfig, tokens: np.ndarray) -> np.ndarray:
    """Logits f64[S, V] of one row, by NumPy, one head at a time."""
    raw = {
        "model_type": "llama", "num_hidden_layers": config.num_layers, "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads, "head_dim": config.head_dim, "rope_theta": config.rope_theta,
        "rms_norm_eps": config.norm_eps,
    }  # fmt: skip
    tensors = {"model.embed_tokens.weight": params["embedding"], "model.norm.weight": params["final_norm"]}
    tensors |= {"lm_head.weight": params["lm_head"].T} if "lm_head" in params else {}
    for name, stacked in params["layers"].items():
        tensors |= {f"model.layers.{i}.{hf_models.LAYER_NAMES[name]}": x.T for i, x in enumerate(stacked)}
    return hf_models.slow_logits(raw, {key: np.asarray(x) for key, x in tensors.items()}, tokens)
