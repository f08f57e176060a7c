"""A decoder-only transformer: parameters declared by Flax, everything else a function of arrays.

Letters: `B` rows, `S` sequence positions, `C` tokens of a chunk, `D` width, `V` vocabulary, `N` layers; see `layers`.
"""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from agentrl_jax.models import layers

Params = Any
"""A tree of parameters; the leaves under "layers" are stacked over layers, [N, ...]."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Shape of a decoder (pre-norm, rotary positions, grouped-query attention, SwiGLU)."""

    vocab_size: int
    num_layers: int
    width: int
    num_heads: int
    num_kv_heads: int
    mlp_width: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    tied_embeddings: bool = True
    dtype: str = "float32"

    def __post_init__(self):
        if self.width % self.num_heads:
            raise ValueError(f"model width {self.width} must be a multiple of its {self.num_heads} heads")
        if (self.width // self.num_heads) % 2:
            raise ValueError(f"head dimension {self.width // self.num_heads} must be even for rotary positions")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads cannot be shared evenly by {self.num_kv_heads} key-value heads")

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.width // self.num_heads


class Decoder(nn.Module):
    """Declares the parameters; the mathematics are the functions below. Used only through `init` and `apply`."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Returns logits f32[B, S, V] for `tokens` i32[B, S]."""
        c = self.config
        scaled = nn.initializers.normal(c.width**-0.5)
        declared: dict[str, Any] = {
            "embedding": self.param("embedding", scaled, (c.vocab_size, c.width), jnp.float32),
            "layers": self.param("layers", _init_layers, c),
            "final_norm": self.param("final_norm", nn.initializers.ones, (c.width,), jnp.float32),
        }
        if not c.tied_embeddings:
            declared["unembedding"] = self.param("unembedding", scaled, (c.width, c.vocab_size), jnp.float32)
        return logits(declared, forward(declared, c, tokens))


def init_params(key: jax.Array, config: DecoderConfig) -> Params:
    """Returns fresh f32 parameters."""
    return Decoder(config).init(key, jnp.zeros((1, 1), jnp.int32))["params"]


def _init_layers(key: jax.Array, c: DecoderConfig) -> dict[str, jax.Array]:
    kv_width = c.num_kv_heads * c.head_dim
    shapes = {
        "query": (c.width, c.width),
        "key": (c.width, kv_width),
        "value": (c.width, kv_width),
        "output": (c.width, c.width),
        "gate": (c.width, c.mlp_width),
        "up": (c.width, c.mlp_width),
        "down": (c.mlp_width, c.width),
    }
    keys = dict(zip(shapes, jax.random.split(key, len(shapes))))
    # What is added to the residual stream starts smaller, so that the stream's variance does not grow with depth.
    added = {name: (2 * c.num_layers) ** -0.5 for name in ("output", "down")}
    matrices = {
        name: added.get(name, 1.0) * shape[0] ** -0.5 * jax.random.normal(keys[name], (c.num_layers, *shape))
        for name, shape in shapes.items()
    }
    norms = {name: jnp.ones((c.num_layers, c.width), jnp.float32) for name in ("attention_norm", "mlp_norm")}
    return matrices | norms


class KVCache(struct.PyTreeNode):
    """Keys and values of the positions seen so far, one buffer a layer.

    Attributes:
        keys: N arrays [B, K, S, Dh].
        values: N arrays [B, K, S, Dh].
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]

    @property
    def length(self) -> int:
        """Number of positions S that fit."""
        return self.keys[0].shape[2]


def init_cache(config: DecoderConfig, batch: int, length: int) -> KVCache:
    """Returns an all-zero cache for `batch` rows of `length` positions."""
    shape = (batch, config.num_kv_heads, length, config.head_dim)

    def buffers():
        return tuple(jnp.zeros(shape, config.dtype) for _ in range(config.num_layers))

    return KVCache(keys=buffers(), values=buffers())


def forward(
    params: Params, config: DecoderConfig, tokens: jax.Array, *, common: int = 0, remat: bool = False
) -> jax.Array:
    """Hidden states [B, S, D] of whole rows that start at position 0 and are padded on the right.

    Layers are scanned; with `remat` each is recomputed in the backward pass (`jax.checkpoint`).

    Args:
        params: parameters.
        config: shape of the decoder.
        tokens: i32[B, S].
        common: number of first tokens, less than S, that are the same in every row; they are computed once for all.
        remat: see above.
    """
    batch, length = tokens.shape
    table = params["embedding"].astype(config.dtype)
    cos, sin = layers.rotary_angles(jnp.arange(length)[None], config.head_dim, config.rope_theta)
    visible = jnp.tril(jnp.ones((length, length), bool))[None]
    # The first tokens are a chunk of one row, if there are any; all rows of the second chunk read its keys and values.
    starts = (0, common, length) if common else (0, length)
    spans = [slice(start, end) for start, end in itertools.pairwise(starts)]

    def layer(chunks, weights):
        after, keys, values = [], [], []
        for x, span in zip(chunks, spans):
            query, key, value = _project(weights, config, x, (cos[:, span], sin[:, span]))
            keys.append(key.swapaxes(1, 2))
            values.append(value.swapaxes(1, 2))
            key, value = (
                jnp.concatenate([jnp.broadcast_to(part, (len(x), *part.shape[1:])) for part in parts], axis=2)
                for parts in (keys, values)
            )
            mixed = layers.attend(query, key, value, visible[:, span, : span.stop])
            after.append(_finish(weights, config, x, mixed))
        return after, None

    rows = [tokens[:1], tokens] if common else [tokens]
    chunks = [table[some[:, span]] for some, span in zip(rows, spans)]
    chunks, _ = jax.lax.scan(jax.checkpoint(layer) if remat else layer, chunks, _cast(params["layers"], config))
    x = jnp.concatenate([jnp.broadcast_to(chunk, (batch, *chunk.shape[1:])) for chunk in chunks], axis=1)
    return layers.rms_norm(x, params["final_norm"], config.norm_eps)


def extend(
    params: Params, config: DecoderConfig, cache: KVCache, tokens: jax.Array, start: jax.Array, count: jax.Array
) -> tuple[jax.Array, KVCache]:
    """Appends a chunk of tokens to each row of the cache.

    Args:
        params: parameters.
        config: shape of the decoder.
        cache: cache of B rows; positions from `start` on are overwritten, earlier ones are read.
        tokens: i32[B, C], padded on the right.
        start: i32[B] position of each row's first token.
        count: i32[B] tokens of each row that are real; a row with 0 leaves its cache untouched.

    Returns:
        Hidden states [B, C, D] (those beyond `count` mean nothing) and the cache.
    """
    batch, chunk = tokens.shape
    offsets = jnp.arange(chunk)
    positions = start[:, None] + offsets
    # A write to a position past the end is dropped: that is how rows and tokens that must not write are masked.
    targets = jnp.where(offsets < count[:, None], positions, cache.length)
    visible = jnp.arange(cache.length) <= positions[:, :, None]
    angles = layers.rotary_angles(positions, config.head_dim, config.rope_theta)
    rows = jnp.arange(batch)[:, None]
    weights_of_all = _cast(params["layers"], config)
    x = params["embedding"].astype(config.dtype)[tokens]
    keys, values = [], []
    for index in range(config.num_layers):
        weights = jax.tree.map(lambda leaf, i=index: leaf[i], weights_of_all)
        query, key, value = _project(weights, config, x, angles)
        keys.append(cache.keys[index].at[rows, :, targets].set(key, mode="drop"))
        values.append(cache.values[index].at[rows, :, targets].set(value, mode="drop"))
        x = _finish(weights, config, x, layers.attend(query, keys[-1], values[-1], visible))
    return layers.rms_norm(x, params["final_norm"], config.norm_eps), KVCache(tuple(keys), tuple(values))


def logits(params: Params, hidden: jax.Array) -> jax.Array:
    """Vocabulary logits f32[..., V] of hidden states [..., D]."""
    table = params["unembedding"] if "unembedding" in params else params["embedding"].T
    return jnp.matmul(hidden, table.astype(hidden.dtype), preferred_element_type=jnp.float32)


def _cast(stacked: Params, config: DecoderConfig) -> Params:
    return jax.tree.map(lambda leaf: leaf.astype(config.dtype), stacked)


def _project(weights, config: DecoderConfig, x, angles):
    normed = layers.rms_norm(x, weights["attention_norm"], config.norm_eps)
    split = (*x.shape[:-1], -1, config.head_dim)
    query = layers.rotate((normed @ weights["query"]).reshape(split), angles)
    key = layers.rotate((normed @ weights["key"]).reshape(split), angles)
    return query, key, (normed @ weights["value"]).reshape(split)


def _finish(weights, config: DecoderConfig, x, mixed):
    x = x + mixed.reshape(x.shape) @ weights["output"]
    normed = layers.rms_norm(x, weights["mlp_norm"], config.norm_eps)
    return x + layers.swiglu(normed, weights["gate"], weights["up"], weights["down"])
