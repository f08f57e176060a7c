"""The decoder with a cache: chunks of tokens, and decoding steps.

Shapes: `B` rows, `C` tokens of a chunk, `D` embedding dimension; see also `layers`.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.errors import BadValue
from agentrl_jax.models import attention, layers, matmul
from agentrl_jax.models.decoder import Params, as_activations, split_stacks
from agentrl_jax.models.kv_cache import KVCache, SharedPrefix
from agentrl_jax.models.quantized import quantize
from agentrl_jax.models.shape import DecoderConfig


def prepare_for_decode(params: Params, config: DecoderConfig) -> Params:
    """Parameters for a loop of `decode_with_cache` and `forward_with_cache`, whose layers are compiled one by one.

    They are in the activations' dtype or integers, one tree per layer, for few rows. Call it once before the loop; a
    step that sliced its layers out of a stack would copy them.
    """
    prepared = prepare_stacked(params, config)
    outer, stacks = split_stacks(prepared)
    per_layer = [
        _prepared_layer(jax.tree.map(lambda leaf, i=i: leaf[i], stack), config)
        for stack in stacks
        for i in range(stack["attention_norm"].shape[0])
    ]
    return {**outer, "layers": tuple(per_layer)}


def prepare_stacked(params: Params, config: DecoderConfig) -> Params:
    """Parameters for one call of `forward_with_cache` before such a loop, whose layers are scanned.

    They give the same numbers as those of `prepare_for_decode`, and take about a layer's time to compile.
    """
    params = as_activations(params, config)
    return params | _prepared_outer(split_stacks(params)[0], config)


def _prepared_layer(weights: layers.Weights, config: DecoderConfig) -> layers.Weights:
    matrices = [name for name, shape in config.layer_shapes().items() if len(shape) == 2]
    prepared = functools.partial(quantize, axis=0) if config.decode_dtype == "int8" else matmul.for_few_rows
    return {name: prepared(leaf) if name in matrices else leaf for name, leaf in weights.items()}


def _prepared_outer(params: dict[str, Any], config: DecoderConfig) -> dict[str, Any]:
    outer = dict(params)
    if config.decode_dtype == "int8":
        outer["embedding"] = quantize(outer["embedding"], axis=1)
        if "lm_head" in outer:
            outer["lm_head"] = quantize(outer["lm_head"], axis=0)
    elif "lm_head" not in outer and (table := matmul.transposed_table(outer["embedding"])) is not None:
        outer["transposed_embedding"] = table
    return outer


def forward_with_cache(
    params: Params,
    config: DecoderConfig,
    cache: KVCache,
    tokens: Int[Array, "B C"],
    start: Int[Array, " B"],
    count: Int[Array, " B"],
    prefix: SharedPrefix | None = None,
    rows: Int[Array, " B"] | None = None,
    *,
    only_last: bool = False,
) -> tuple[Float[Array, "B K D"], KVCache]:
    """Appends a chunk of tokens, padded on the right, to the blocks of each row.

    `params` are from `prepare_for_decode` or `prepare_stacked`. `start` is the position of the first token, in a
    context that begins with the row's prefix if there is one. Positions from there on are overwritten, earlier ones are
    read. `count` is the number of real tokens of each row; for a row with 0 the cache is unchanged. With `rows`, the B
    rows of the other arguments are these rows of the cache, which has no opening. Returns the hidden states (K = C of
    them, arbitrary beyond `count`) and the cache. With `only_last`, it returns the state of the last real token of each
    row, K = 1, and the last layer computes only keys and values of the other tokens.

    Raises:
        ValueError: stacked parameters, or `rows`, with a cache that has an opening.
    """
    if rows is not None and cache.opening is not None:
        raise BadValue(
            "some rows read no cache with an opening, which is of whole groups; give all rows", key="opening"
        )
    columns = jnp.arange(tokens.shape[1])
    first = _prefix_length(prefix, start) + cache.opening_length
    offsets = jnp.where(columns < count[:, None], (start - first)[:, None] + columns, -1)
    stored = start + count

    def write(cache, layer, key, value):
        return cache.write(layer, key, value, offsets, rows)

    positions = start[:, None] + columns
    last = jnp.maximum(count - 1, 0) if only_last else None
    return _read(
        *(params, config, cache, tokens, positions, write, prefix, stored, count > 0),
        decoding=False,
        rows=rows,
        last=last,
    )


def decode_with_cache(
    params: Params,
    config: DecoderConfig,
    cache: KVCache,
    token: Int[Array, " B"],
    position: Int[Array, " B"],
    length: Int[Array, " B"],
    active: Bool[Array, " B"],
    prefix: SharedPrefix | None = None,
    *,
    lockstep: bool = False,
) -> tuple[Float[Array, "B D"], KVCache]:
    """Appends a token at `position` to the response of each active row, which has `length` tokens so far.

    `lockstep` says that `length` is the same in all active rows, which is then faster. Other arguments are as in
    `forward_with_cache`; the cache of other rows is unchanged. Returns the hidden states and the cache.
    """

    def write(cache, layer, key, value):
        return cache.append(layer, key, value, length, active, lockstep=lockstep)

    stored = position - length
    hidden, cache = _read(
        params, config, cache, token[:, None], position[:, None], write, prefix, stored, active, decoding=True
    )
    return hidden[:, 0], cache


def _read(
    params: Params,
    config: DecoderConfig,
    cache: KVCache,
    tokens: Int[Array, "B C"],
    positions: Int[Array, "B C"],
    write: Callable[[KVCache, int, jax.Array, jax.Array], KVCache],
    prefix: SharedPrefix | None,
    stored: Int[Array, " B"],
    active: Bool[Array, " B"],
    *,
    decoding: bool,
    rows: Int[Array, " B"] | None = None,
    last: Int[Array, " B"] | None = None,
) -> tuple[Float[Array, "B K D"], KVCache]:
    """Runs all layers on tokens that `write` adds to the cache, whose blocks then end before position `stored`.

    With `last`, returns the hidden state of this token of each row alone, [B, 1, D].
    """
    opening = _prefix_length(prefix, stored)
    first = opening + cache.opening_length
    apart = cache.opening is None or not cache.opening.prefix
    longest = jnp.max(jnp.where(active, stored - first, 0))
    angles = layers.rotary_angles(positions, config)
    x = matmul.lookup(params["embedding"], tokens, config.dtype)

    def layer(x, weights, cache, prefix, index, window, last=None):
        query, key, value = layers.project(weights, config, x, angles)
        cache = write(cache, index, key, value)
        seeing = positions
        if last is not None:
            x, of_last, seeing = jax.tree.map(lambda leaf: _token(leaf, last), (x, angles, positions))
            query = layers.project(weights, config, x, of_last)[0]
        segments = cache.block_segments(index, seeing, first, stored, longest, window, rows)
        segments += [prefix.segment(index, seeing, window)] if prefix and apart else []
        segments += [cache.opening.segment(index, seeing, opening, window)] if cache.opening else []
        segments += [cache.response_segment(index, seeing, stored, window)] if decoding else []
        return layers.finish(weights, config, x, attention.attend_cached(query, segments)), cache

    if isinstance(params["layers"], tuple):
        for index, weights in enumerate(params["layers"]):
            window = config.windows[index] if config.windows else 0
            final = index == config.num_layers - 1
            x, cache = layer(x, weights, cache, prefix, index, window, last if final else None)
    else:
        x, cache = _scan_layers(layer, x, params, config, cache, prefix)
        x = x if last is None else _token(x, last)
    return layers.rms_norm(x, params["final_norm"], config.norm_eps), cache


def _scan_layers(
    layer: Callable[..., tuple[jax.Array, KVCache]],
    x: Float[Array, "B C D"],
    params: Params,
    config: DecoderConfig,
    cache: KVCache,
    prefix: SharedPrefix | None,
) -> tuple[Float[Array, "B K D"], KVCache]:
    """Applies `layer` of `_read` to stacked layers in a loop, whose body is compiled once; copies blocks and prefix."""
    if cache.opening is not None:
        raise BadValue(
            "stacked parameters read no cache with an opening; give those of prepare_for_decode", key="parameters"
        )

    def stacked(per_layer):
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *per_layer)

    def body(x, inputs):
        weights, blocks, shared, window = inputs
        own = prefix and prefix.replace(layers=(shared,))
        window = 0 if window is None else window
        x, after = layer(x, _prepared_layer(weights, config), cache.replace(blocks=(blocks,)), own, 0, window)
        return x, after.blocks[0]

    windows = jnp.asarray([window or attention.NO_WINDOW for window in config.windows]) if config.windows else None
    inputs = stacked(cache.blocks), stacked(prefix.layers) if prefix else None, windows
    written, start = [], 0
    for stack in split_stacks(params)[1]:
        end = start + stack["attention_norm"].shape[0]
        x, blocks = jax.lax.scan(body, x, (stack, *jax.tree.map(lambda leaf, a=start, b=end: leaf[a:b], inputs)))
        written += [jax.tree.map(lambda leaf, i=i: leaf[i], blocks) for i in range(end - start)]
        start = end
    return x, cache.replace(blocks=tuple(written))


def _token(x: jax.Array, column: Int[Array, " B"]) -> jax.Array:
    """One token of each row: [B, C, ...] -> [B, 1, ...]."""
    return jnp.take_along_axis(x, column.reshape(-1, *[1] * (x.ndim - 1)), axis=1)


def _prefix_length(prefix: SharedPrefix | None, like: Int[Array, " B"]) -> Int[Array, " B"]:
    return jnp.zeros_like(like) if prefix is None else prefix.length[prefix.row]
