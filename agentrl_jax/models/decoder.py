"""A decoder-only transformer: parameters are declared with Flax, everything else is a function of arrays.

Shapes: `B` rows, `S` sequence positions, `D` embedding dimension, `V` vocabulary, `N` layers;
see also `layers`.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Float, Int, Key

from agentrl_jax.models import layers, matmul, row_attention, sequence_attention
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.models.vocabulary import Vocabulary

Params = Any
"""A tree of parameters. Under "layers" the leaves are stacked over layers, [N, ...], see `DecoderConfig.layer_shapes`;
for decoding they are a tuple of N trees instead, see `cached_decoder`. The first layers may be stacked separately under
"first_layers", so that frozen and trained layers need not be concatenated."""

MIXED = "mixed"
"""Checkpoint name of the output of attention."""

Remat = Literal["none", "dots", "full"]

REMAT: dict[Remat, Callable[..., Any] | None] = {
    "none": None,
    "dots": functools.partial(
        jax.checkpoint,
        policy=jax.checkpoint_policies.save_from_both_policies(
            jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
            jax.checkpoint_policies.save_only_these_names(MIXED),
        ),
    ),
    "full": jax.checkpoint,
}
"""What the backward pass recomputes in each layer. none: only attention scores. dots: everything except products with
parameters and the output of attention. full: everything."""

GATHERED = "gathered"
"""Checkpoint name of all-gathered parameters; the backward pass gathers them again instead of storing them."""


class NoGather:
    """Gathers nothing, for parameters that are not sharded over fsdp; see `parallel.fsdp.Gather` for the others."""

    def __call__(self, params: Any) -> Any:
        """The full (all-gathered) parameters."""
        return params

    def ordered(self, first: Any, second: Any) -> tuple[Any, Any]:
        """Both trees; the second is not gathered before the first is computed."""
        return first, second

    def lookup(self, table: Float[Array, "V D"], tokens: Int[Array, "B S"]) -> Float[Array, "B S D"]:
        """The embeddings of tokens."""
        return table[tokens]

    def head(self, params: Params, size: int) -> tuple[Params, Vocabulary]:
        """Parameters that `logits` reads, and which of the logits of `size` tokens they give; `params` are lm_head, or
        the embedding if it is tied."""
        return params, Vocabulary(size)

    def after(self, x: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        """`x`, and the all-gathered parameters, which are gathered after `x` is computed."""
        x, params = self.ordered(x, params)
        return x, self(params)


NO_GATHER = NoGather()

_STACKS = ("first_layers", "layers")


class Decoder(nn.Module):
    """Declares the parameters; the computation is in the functions below. Use only through `init` and `apply`."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, tokens: Int[Array, "B S"]) -> Float[Array, "B S V"]:
        """Returns logits."""
        c = self.config
        scaled = nn.initializers.normal(c.embed_dim**-0.5)
        declared: dict[str, Any] = {
            "embedding": self.param("embedding", scaled, (c.vocab_size, c.embed_dim), jnp.float32),
            "layers": self.param("layers", _init_layers, c),
            "final_norm": self.param("final_norm", nn.initializers.ones, (c.embed_dim,), jnp.float32),
        }
        if not c.tied_embeddings:
            declared["lm_head"] = self.param("lm_head", scaled, (c.embed_dim, c.vocab_size), jnp.float32)
        return logits(declared, forward(declared, c, tokens))


def init_params(key: Key[Array, ""], config: DecoderConfig) -> Params:
    """Returns random initial f32 parameters."""
    return Decoder(config).init(key, jnp.zeros((1, 1), jnp.int32))["params"]


def _init_layers(key: Key[Array, ""], c: DecoderConfig) -> dict[str, jax.Array]:
    shapes = c.layer_shapes()
    matrices = [name for name, shape in shapes.items() if len(shape) == 2]
    keys = dict(zip(matrices, jax.random.split(key, len(matrices))))
    # Matrices that add to the residual stream start smaller, so that its variance does not grow with depth.
    added = {name: (2 * c.num_layers) ** -0.5 for name in ("output", "down")}

    def leaf(name: str, shape: tuple[int, ...]) -> jax.Array:
        if len(shape) == 1:
            return jnp.full((c.num_layers, *shape), 1.0 if name.endswith("_norm") else 0.0, jnp.float32)
        return added.get(name, 1.0) * shape[0] ** -0.5 * jax.random.normal(keys[name], (c.num_layers, *shape))

    return {name: leaf(name, shape) for name, shape in shapes.items()}


def as_activations(params: Any, config: DecoderConfig) -> Any:
    """Parameters cast to the activations' dtype; scales of norms stay as they are, because norms use f32."""

    def cast(path, leaf):
        return leaf if str(path[-1].key).endswith("_norm") else leaf.astype(config.dtype)

    return jax.tree_util.tree_map_with_path(cast, params)


def forward(
    params: Params,
    config: DecoderConfig,
    tokens: Int[Array, "B S"],
    *,
    shared_prefix_len: int = 0,
    segment_ids: Int[Array, "B S"] | None = None,
    sequence_axis: str = "",
    remat: Remat = "none",
    gather: NoGather = NO_GATHER,
) -> Float[Array, "B S D"]:
    """Hidden states of full rows, which start at position 0 and are padded on the right; layers are scanned.

    The first `shared_prefix_len` tokens, fewer than S, are the same in every row and computed only once. A token sees
    only tokens with its own id in `segment_ids`, for rows packed with several sequences; rotary positions are those in
    the row, of which only differences matter. Inside a `jax.shard_map` over `sequence_axis`, each device computes its
    share of the positions of the same rows, see `sequence_attention`; a shared prefix is then computed for every row.
    `gather` all-gathers sharded parameters.
    """
    batch, length = tokens.shape
    params = as_activations(params, config)
    if sequence_axis:
        shared_prefix_len = 0
        more = ((0, 0), (0, -length % (2 * jax.lax.axis_size(sequence_axis))))
        tokens = jnp.pad(tokens, more)
        segment_ids = None if segment_ids is None else jnp.pad(segment_ids, more, "edge")
    positions = jnp.arange(tokens.shape[1])[None]
    if sequence_axis:
        tokens, positions = (sequence_attention.shard_positions(x, sequence_axis) for x in (tokens, positions))
    cos, sin = layers.rotary_angles(positions, config)
    # A shared prefix is a first chunk with one row; all rows of the second chunk read its keys and values.
    starts = (0, shared_prefix_len, tokens.shape[1]) if shared_prefix_len else (0, tokens.shape[1])
    spans = [slice(start, end) for start, end in itertools.pairwise(starts)]
    # A window that holds the whole row is none.
    windows = [window if window < length else 0 for window in config.windows] or [0] * config.num_layers

    def attend(windows, kind, query, key, value):
        options: dict[str, Any] = {"segment_ids": segment_ids, "implementation": config.attention}
        function: Callable[..., Any] = row_attention.attention
        if sequence_axis:
            function = functools.partial(sequence_attention.sequence_attention, axis_name=sequence_axis)
        elif segment_ids is not None:
            options["segment_ids"] = segment_ids[: len(query), : key.shape[2]]
        kinds = [functools.partial(function, window=window, **options) for window in sorted({*windows})]
        if kind is None:
            return kinds[0](query, key, value)
        # Windows are static, so that keys outside are skipped; one loop over layers chooses among the different ones.
        return jax.checkpoint(lambda *arrays: jax.lax.switch(kind, kinds, *arrays))(query, key, value)

    def layer(windows, chunks, layer_inputs):
        weights, kind = layer_inputs
        weights = gather(weights)
        after, keys, values = [], [], []
        for x, span in zip(chunks, spans):
            query, key, value = layers.project(weights, config, x, (cos[:, span], sin[:, span]))
            keys.append(key.swapaxes(1, 2))
            values.append(value.swapaxes(1, 2))
            key, value = (
                jnp.concatenate([jnp.broadcast_to(part, (len(x), *part.shape[1:])) for part in parts], axis=2)
                for parts in (keys, values)
            )
            mixed = checkpoint_name(attend(windows, kind, query, key, value), MIXED)
            after.append(layers.finish(weights, config, x, mixed))
        return after, None

    rows = [tokens[:1], tokens] if shared_prefix_len else [tokens]
    chunks = [gather.lookup(params["embedding"], some[:, span]) for some, span in zip(rows, spans)]
    recomputed = REMAT[remat]
    if gather is not NO_GATHER and recomputed is None:
        policy = jax.checkpoint_policies.save_anything_except_these_names(GATHERED)
        recomputed = functools.partial(jax.checkpoint, policy=policy)
    first = 0
    for stack in split_stacks(params)[1]:
        last = first + stack["attention_norm"].shape[0]
        of_stack = windows[first:last]
        kinds = np.searchsorted(sorted({*of_stack}), of_stack) if len({*of_stack}) > 1 else None
        of_layer = functools.partial(layer, of_stack)
        chunks, _ = jax.lax.scan(of_layer if recomputed is None else recomputed(of_layer), chunks, (stack, kinds))
        first = last
    x = jnp.concatenate([jnp.broadcast_to(chunk, (batch, *chunk.shape[1:])) for chunk in chunks], axis=1)
    if sequence_axis:
        x = sequence_attention.all_gather_positions(x, sequence_axis)[:, :length]
    x, norm = gather.after(x, {"final_norm": params["final_norm"]})
    return layers.rms_norm(x, norm["final_norm"], config.norm_eps)


def logits(params: Params, hidden: Float[Array, "... D"]) -> Float[Array, "... V"]:
    """Vocabulary logits, f32, of hidden states."""
    if "lm_head" in params:
        return matmul.project_out(hidden, params["lm_head"])
    return matmul.unembed(hidden, params["embedding"], params.get("transposed_embedding"))


def at_token(scores: Float[Array, "*B V"], token: Int[Array, "*B"]) -> Float[Array, "*B"]:
    """The score of a token from scores of the vocabulary."""
    # A comparison instead of an index, so that devices that hold shards of the vocabulary need not gather it.
    return jnp.sum(jnp.where(jnp.arange(scores.shape[-1]) == token[..., None], scores, 0.0), axis=-1)


def split_stacks(params: Params) -> tuple[dict[str, jax.Array], list[dict[str, jax.Array]]]:
    """The parameters outside of the layers, and the stacks of layers in order."""
    outer = {name: leaf for name, leaf in params.items() if name not in _STACKS}
    return outer, [params[name] for name in _STACKS if name in params]
