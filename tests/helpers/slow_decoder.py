"""A slow NumPy decoder, and a small configuration with parameters for comparisons."""

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.models import decoder
from agentrl_jax.models.shape import DecoderConfig

CONFIG = DecoderConfig(
    vocab_size=23,
    num_layers=2,
    embed_dim=16,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
    mlp_width=20,
    tied_embeddings=False,
)
ROWS, LENGTH = 3, 11


def lively_params(config: DecoderConfig, seed: int = 0):
    """Parameters large enough that every position matters."""
    params = decoder.init_params(jax.random.key(seed), config)
    draw = np.random.default_rng(seed)
    grown = jax.tree.map(lambda x: jnp.asarray(0.2 * draw.standard_normal(x.shape), jnp.float32), params)
    norms = {name: x + 1.0 for name, x in grown["layers"].items() if name.endswith("norm")}
    return grown | {"layers": grown["layers"] | norms, "final_norm": grown["final_norm"] + 1.0}


def slow_logits(params, config: DecoderConfig, tokens: np.ndarray) -> np.ndarray:
    """Logits f64[S, V] of one row, one position and one head at a time."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    size = config.head_dim

    def norm(x, scale):
        return x / np.sqrt(np.mean(x * x) + config.norm_eps) * scale

    def rotate(x, position):
        half, out = size // 2, np.empty(size)
        for i in range(half):
            angle = position * config.rope_theta ** (-2 * i / size)
            out[i] = x[i] * np.cos(angle) - x[i + half] * np.sin(angle)
            out[i + half] = x[i + half] * np.cos(angle) + x[i] * np.sin(angle)
        return out

    stream = [p["embedding"][t] for t in tokens]
    for layer in range(config.num_layers):
        w = {name: leaf[layer] for name, leaf in p["layers"].items()}
        keys, values, after = [], [], []
        for position, x in enumerate(stream):
            h = norm(x, w["attention_norm"])
            keys.append([rotate(k, position) for k in (h @ w["key"]).reshape(config.num_kv_heads, size)])
            values.append((h @ w["value"]).reshape(config.num_kv_heads, size))
            mixed = []
            for head, q in enumerate((h @ w["query"]).reshape(config.num_heads, size)):
                shared = head // (config.num_heads // config.num_kv_heads)
                q = rotate(q, position)
                scores = np.array([q @ k[shared] / np.sqrt(size) for k in keys])
                odds = np.exp(scores - scores.max())
                mixed.append(sum(o * v[shared] for o, v in zip(odds / odds.sum(), values)))
            x = x + np.concatenate(mixed) @ w["output"]
            h = norm(x, w["mlp_norm"])
            gate = h @ w["gate"]
            after.append(x + (gate / (1 + np.exp(-gate)) * (h @ w["up"])) @ w["down"])
        stream = after
    table = p["lm_head"] if "lm_head" in p else p["embedding"].T
    return np.stack([norm(x, p["final_norm"]) @ table for x in stream])
