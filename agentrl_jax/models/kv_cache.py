"""Keys and values of the tokens that a model has read, in segments that are read and written where they are needed.

A row's context is a prefix, which many rows share and no row stores; an opening, which the rows of a group share, and
which can include a copy of the prefix; what it has read and written since, in blocks of equal size (the first and the
last may be smaller), of which only the filled ones are read; and the response that is being decoded, in a buffer that
is small enough to be rewritten at every token.

Shapes: `B` rows in `Gr` groups of contiguous rows, `C` tokens of a chunk, `R` prefixes of at most `P` tokens, openings
of at most `O` tokens, `W` positions of a block, `L` tokens of a response; `K` key-value heads and `Dh` as in `layers`.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.models.attention import CachedKeys, Segment, SharedKeys, visible
from agentrl_jax.models.quantized import Quantized, quantize
from agentrl_jax.models.shape import DecoderConfig

MAX_BLOCKS = 8
"""Largest number of blocks: attention over each is compiled for itself."""
SMALLEST_BLOCK = 96
"""Fewest positions of a block where there are several: the lanes of a TPU."""

Chunk = Float[Array, "B C K Dh"] | Quantized
AllRows = Float[Array, "R K S Dh"] | Quantized


class SharedPrefix(struct.PyTreeNode):
    """Keys and values of R prefixes, each padded to P positions, and the prefix of each row."""

    layers: tuple[tuple[SharedKeys, SharedKeys], ...]
    """Keys and values of each layer; the prefixes follow each other."""
    length: Int[Array, " R"]
    row: Int[Array, " B"]
    """Number of each row's prefix."""

    @property
    def positions(self) -> int:
        """P, the positions of each prefix."""
        return self.layers[0][0].shape[1] // len(self.length)

    def segment(self, layer: int, positions: Int[Array, "B C"], window: int | Int[Array, ""]) -> Segment:
        """The prefixes of one layer, of which queries at `positions` see those positions of their own prefix."""
        key, value = self.layers[layer]
        number, position = np.divmod(np.arange(key.shape[1]), self.positions)
        own = (number == self.row[:, None]) & (position < self.length[self.row][:, None])
        return Segment(key, value, own[:, None] & visible(jnp.asarray(position[None]), positions, window))

    def of_groups(self, layer: int, groups: int) -> tuple[CachedKeys, CachedKeys]:
        """A copy of the prefix of each group of contiguous rows: leaves [Gr, K, P, Dh], scales of integers 1 for Dh."""
        rows = self.row[:: len(self.row) // groups]

        def chosen(x: jax.Array) -> jax.Array:
            return x.reshape(x.shape[0], len(self.length), -1, x.shape[2])[:, rows].swapaxes(0, 1)

        return jax.tree.map(chosen, self.layers[layer])


class Opening(struct.PyTreeNode):
    """Keys and values of what the rows of a group read first, stored once for the group."""

    layers: tuple[tuple[CachedKeys, CachedKeys], ...]
    """By layer: leaves [Gr, K, O, Dh], scales of integers 1 for Dh; with a prefix P + O for O."""
    length: Int[Array, " Gr"]
    """Tokens without those of the prefix."""
    prefix: int = struct.field(default=0, pytree_node=False)
    """P columns at the front, which hold the prefix of the group; 0 if prefixes are read apart."""

    def with_prefix(self, prefix: SharedPrefix) -> "Opening":
        """These openings, with the prefix of each group before them."""
        groups = len(self.length)
        before = (prefix.of_groups(layer, groups) for layer in range(len(self.layers)))
        layers = tuple(
            jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=2), *pairs) for pairs in zip(before, self.layers)
        )
        return self.replace(layers=layers, prefix=prefix.positions)

    def of_rows(self, rows: int) -> Int[Array, " B"]:
        """The length for each of so many rows."""
        return jnp.repeat(self.length, rows // len(self.length))

    def segment(
        self, layer: int, positions: Int[Array, "B C"], start: Int[Array, " B"], window: int | Int[Array, ""]
    ) -> Segment:
        """The openings of one layer, which begin at position `start`, as later queries of the rows see them."""
        key, value = self.layers[layer]
        column = np.arange(key.shape[2]) - self.prefix
        before = column < 0
        position = jnp.where(before, column + self.prefix, start[:, None] + column)
        inside = jnp.where(before, position < start[:, None], column < self.of_rows(len(start))[:, None])
        if isinstance(window, int) and not window:
            return Segment(key, value, inside[:, None])
        return Segment(key, value, inside[:, None] & visible(position, positions, window))


class KVCache(struct.PyTreeNode):
    """Keys and values that rows store; leaves have the shape [B, K, positions, Dh], scales of integers 1 for Dh."""

    blocks: tuple[tuple[tuple[CachedKeys, CachedKeys], ...], ...]
    """Keys and values by layer and block."""
    response: tuple[tuple[CachedKeys, CachedKeys], ...]
    """By layer; L positions, which may be 0."""
    opening: Opening | None = None
    """None if every row stores what it reads first."""
    skips: bool = struct.field(default=True, pytree_node=False)
    """Blocks that no row has reached are not read."""

    @property
    def opening_length(self) -> Int[Array, "*B"]:
        """Tokens of each row's opening; without openings 0 for all."""
        return jnp.int32(0) if self.opening is None else self.opening.of_rows(self.response[0][0].shape[0])

    @property
    def bounds(self) -> list[int]:
        """Offsets at which the blocks start, and the end of the last."""
        return [0, *itertools.accumulate(key.shape[2] for key, _ in self.blocks[0])]

    def first(self, groups: int, length: int) -> "KVCache":
        """A cache for a row of each group to read its first tokens, at most `length`; they are its only blocks."""
        response = jax.tree.map(lambda x: x[:groups], self.response)
        if self.opening is not None:
            return self.replace(blocks=tuple((pair,) for pair in self.opening.layers), response=response, opening=None)
        number = sum(start < length for start in self.bounds[:-1])
        blocks = tuple(layer[:number] for layer in self.blocks)
        return self.replace(blocks=jax.tree.map(lambda x: x[:groups], blocks), response=response)

    def with_first(self, first: "KVCache", length: Int[Array, " Gr"], prefix: SharedPrefix | None = None) -> "KVCache":
        """This cache when all rows of each group have read the `length` tokens that a row of `first` has.

        Where blocks are not skipped, openings include the prefixes of their groups. Both are then one segment, and
        groups read one prefix and not all.
        """
        if self.opening is not None:
            opening = Opening(tuple(pair for (pair,) in first.blocks), length)
            return self.replace(opening=opening if self.skips or prefix is None else opening.with_prefix(prefix))
        group_size, number = self.response[0][0].shape[0] // len(length), len(first.blocks[0])
        blocks = jax.tree.map(lambda x: jnp.repeat(x, group_size, axis=0), first.blocks)
        return self.replace(blocks=tuple(new + old[number:] for new, old in zip(blocks, self.blocks)))

    def write(
        self, layer: int, key: Chunk, value: Chunk, offsets: Int[Array, "B C"], rows: Int[Array, " B"] | None = None
    ) -> "KVCache":
        """Writes a chunk to the blocks of a layer, each token to its offset; tokens with a negative one are dropped.

        With `rows`, the chunk is of these rows of the cache, else of all.
        """
        rows = (jnp.arange(len(offsets)) if rows is None else rows)[:, None]
        chunk = _as_stored(self.blocks[layer][0], (key, value))
        written = []
        for pair, (start, end) in zip(self.blocks[layer], itertools.pairwise(self.bounds)):
            # An offset outside of the block is given one past its end, where writes are dropped.
            inside = (start <= offsets) & (offsets < end)
            local = jnp.where(inside, offsets, end) - start
            written.append(
                jax.tree.map(lambda buffer, new, to=local: buffer.at[rows, :, to].set(new, mode="drop"), pair, chunk)
            )
        return self.replace(blocks=(*self.blocks[:layer], tuple(written), *self.blocks[layer + 1 :]))

    def append(
        self,
        layer: int,
        key: Chunk,
        value: Chunk,
        length: Int[Array, " B"],
        active: Bool[Array, " B"],
        *,
        lockstep: bool,
    ) -> "KVCache":
        """Writes a token to the responses of the active rows, which have `length` tokens so far.

        With `lockstep` these are equally many, so that one column of all rows is written in place.
        """
        pair = self.response[layer]
        size = pair[0].shape[2]
        column = jnp.where(active, length, size)

        def scatter(buffer, new):
            return buffer.at[jnp.arange(len(column)), :, column].set(new[:, 0], mode="drop")

        def select(buffer, new):
            here = jnp.arange(size) == column[:, None]
            return jnp.where(here[:, None, :, None], new[:, 0, :, None], buffer)

        def put(buffer, new):
            # A CPU writes the rows one by one, without reading the buffer; other platforms write all at once.
            return jax.lax.platform_dependent(buffer, new, cpu=scatter, default=select)

        def put_together(buffer, new):
            at = jnp.max(jnp.where(active, length, 0))
            old = jax.lax.dynamic_slice_in_dim(buffer, at, 1, axis=2)
            new = jnp.where(active[:, None, None, None], new.swapaxes(1, 2), old)
            return jax.lax.dynamic_update_slice_in_dim(buffer, new, at, axis=2)

        written = jax.tree.map(put_together if lockstep else put, pair, _as_stored(pair, (key, value)))
        return self.replace(response=(*self.response[:layer], written, *self.response[layer + 1 :]))

    def store_responses(self, offset: Int[Array, " B"], length: Int[Array, " B"]) -> "KVCache":
        """Copies the first `length` tokens of each row's response to its blocks, from `offset` on."""
        columns = jnp.arange(self.response[0][0].shape[2])
        offsets = jnp.where(columns < length[:, None], offset[:, None] + columns, -1)
        cache = self
        for layer, pair in enumerate(self.response):
            key, value = jax.tree.map(lambda x: x.swapaxes(1, 2), pair)
            cache = cache.write(layer, key, value, offsets)
        return cache

    def block_segments(
        self,
        layer: int,
        positions: Int[Array, "B C"],
        first: Int[Array, " B"],
        stored: Int[Array, " B"],
        longest: Int[Array, ""],
        window: int | Int[Array, ""],
        rows: Int[Array, " B"] | None = None,
    ) -> list[Segment]:
        """The blocks of a layer, which hold positions from `first` to before `stored`, as queries see them.

        With `rows`, the queries are of these rows of the cache, else of all. Blocks beyond the first `longest`
        positions are skipped, if any are.
        """
        found = []
        for (key, value), start in zip(self.blocks[layer], self.bounds):
            position = first[:, None] + (start + np.arange(key.shape[2]))
            seen = visible(position, positions, window) & (position < stored[:, None])[:, None]
            # Without an opening, the first block is read by every row.
            always = not self.skips or (start == 0 and self.opening is None)
            found.append(Segment(key, value, seen, None if always else start < longest, rows))
        return found

    def response_segment(
        self, layer: int, positions: Int[Array, "B C"], stored: Int[Array, " B"], window: int
    ) -> Segment:
        """The responses of a layer, which start at position `stored`, as queries see them."""
        key, value = self.response[layer]
        return Segment(key, value, visible(stored[:, None] + np.arange(key.shape[2]), positions, window))


def _as_stored(pair: tuple[AllRows, AllRows], chunks: tuple[Chunk, Chunk]) -> tuple[Chunk, ...]:
    """New keys and values, of B rows, in the form of the buffers of all R rows that they are written to."""

    def stored(buffer: AllRows, new: Chunk) -> Chunk:
        if isinstance(new, Quantized):
            return new
        return quantize(new, axis=-1) if isinstance(buffer, Quantized) else new.astype(buffer.dtype)

    return tuple(stored(buffer, new) for buffer, new in zip(pair, chunks))


def blocks_allowed(length: int) -> int:
    """Largest number of blocks of so many positions."""
    return max(1, min(MAX_BLOCKS, length // SMALLEST_BLOCK))


def init_cache(
    config: DecoderConfig, batch: int, length: int, *, response: int = 0, block: int = 0, first: int = 0
) -> KVCache:
    """An all-zero cache of `batch` rows: `length` positions in blocks of `block`, and responses of `response` tokens.

    With a `block` of 0 there are as many blocks as allowed, of equal size. The first block has `first` positions, or
    with 0 as many as the others.
    """
    block = block or -(-length // blocks_allowed(length))
    bounds = [0, *range(first or block, length, block), length]
    sizes = [end - start for start, end in itertools.pairwise(bounds)]
    dtype = config.cache_dtype or config.dtype

    def empty(size: int) -> CachedKeys:
        zeros = jnp.zeros((batch, config.num_kv_heads, size, config.head_dim), dtype)
        return Quantized(zeros, jnp.zeros((*zeros.shape[:-1], 1), jnp.float32)) if dtype == "int8" else zeros

    def pair(size: int) -> tuple[CachedKeys, CachedKeys]:
        return empty(size), empty(size)

    layers = range(config.num_layers)
    return KVCache(tuple(tuple(map(pair, sizes)) for _ in layers), tuple(pair(response) for _ in layers))


def shared_prefix(cache: KVCache, length: Int[Array, " R"], row: Int[Array, " B"]) -> SharedPrefix:
    """The R rows of a cache of one block as prefixes of other rows; they have `length` tokens."""

    def flat(x: jax.Array) -> jax.Array:
        return x.swapaxes(0, 1).reshape(x.shape[1], -1, x.shape[3])

    return SharedPrefix(tuple(jax.tree.map(flat, pair) for (pair,) in cache.blocks), length, row)
