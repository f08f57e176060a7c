"""A small configuration with parameters."""

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
