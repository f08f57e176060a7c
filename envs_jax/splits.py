"""Splits of levels: a hash of its content assigns every level to training, validation or test.

The level of a key and a split is a function of both: keys derived from the given one are tried sequentially until one
gives a level of the split. So no training episode starts from a test level, with any seeds, and levels of a split have
the environment's distribution, conditioned on the split. States on the way of an episode may be test levels.
"""

import enum
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int8, Int32, Key, UInt32

from envs_jax.environment import TextEnvironment, hash_integers


class Split(enum.IntEnum):
    """Subsets of the levels. ANY is all levels, for runs without held-out levels, and NOT_FIXED all levels that are no
    test levels in any case, see `TextEnvironment.test_levels`."""

    NOT_FIXED = -2
    ANY = -1
    TRAIN = 0
    VALIDATION = 1
    TEST = 2


SHARES = {Split.TRAIN: 0.8, Split.VALIDATION: 0.1, Split.TEST: 0.1}
"""Shares of the distinct levels, not of the draws: common levels count as much as rare ones."""

MAX_LEVEL_TRIES = 256
"""Maximum number of keys tried for a level; if a split has its share of the keys, one search in 10^12 finds none."""

_BOUNDS = tuple(int(2**32 * sum(list(SHARES.values())[: index + 1])) for index in range(2))
_KEYS = 0x51E7
"""Folded into a key before the number of the draw, because generators also fold small numbers into their keys."""


def split_of(level_hash: UInt32[Array, "2"]) -> Int32[Array, ""]:
    """Returns the split of a level from its `TextEnvironment.level_hash`."""
    mixed = level_hash[0] ^ (level_hash[1] * jnp.uint32(0x9E3779B9))
    # The finalizer of MurmurHash3, because the high bits of FNV are poorly mixed after few words.
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
    mixed ^= mixed >> 16
    return sum((mixed >= jnp.uint32(bound)).astype(jnp.int32) for bound in _BOUNDS)


def split_of_level(env: TextEnvironment, state: Any, params: Any) -> Int32[Array, ""]:
    """Returns the split of the level of a state that was just reset."""
    return jnp.where(_is_fixed(env, state, params), Split.TEST, split_of(env.level_hash(state, params)))


def _is_fixed(env: TextEnvironment, state: Any, params: Any) -> Bool[Array, ""]:
    return jnp.any(jnp.all(env.level_hash(state, params) == env.test_levels, axis=1))


def _is_of(env: TextEnvironment, state: Any, params: Any, split: Int32[Array, ""] | int) -> Bool[Array, ""]:
    wanted = split_of_level(env, state, params) == split
    return jnp.where(split == Split.NOT_FIXED, ~_is_fixed(env, state, params), wanted)


def first_try(
    env: TextEnvironment, key: Key[Array, ""], params: Any, split: Int32[Array, ""] | int
) -> tuple[UInt32[Array, "2"], Bool[Array, ""]]:
    """The hash of the first level that `split_key` tries, and whether it is of the split, so that the level is taken.

    Pure; can be compiled and vmapped, where it costs a fraction of `split_key`, which tries until all are found.
    """
    any_level = jnp.asarray(split) == Split.ANY
    first = jnp.where(any_level, key, jax.random.fold_in(jax.random.fold_in(key, _KEYS), 0))
    state = env.reset_env(first, params)[1]
    return env.level_hash(state, params), any_level | _is_of(env, state, params, split)


def split_key(
    env: TextEnvironment,
    key: Key[Array, ""],
    params: Any,
    split: Int32[Array, ""] | int,
    first_is_of: Bool[Array, ""] | bool = False,
) -> tuple[Key[Array, ""], Bool[Array, ""]]:
    """Finds a key from which `reset_env` and `sample_level` take a level of a split. Pure; can be compiled and vmapped.

    With `Split.ANY` it is the given key. Also returns whether the level is in the split: not so after
    `MAX_LEVEL_TRIES` keys without such a level, which callers count. `first_is_of`: the first level that is tried is
    known to be of the split (see `first_try`), so that nothing is tried.
    """
    base = jax.random.fold_in(key, _KEYS)

    def try_key(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        number, _ = carry
        state = env.reset_env(jax.random.fold_in(base, number), params)[1]
        return number + 1, _is_of(env, state, params, split)

    any_level = jnp.asarray(split) == Split.ANY
    number, found = jax.lax.while_loop(
        lambda carry: ~carry[1] & (carry[0] < MAX_LEVEL_TRIES), try_key, (jnp.int32(0), any_level | first_is_of)
    )
    return jnp.where(any_level, key, jax.random.fold_in(base, jnp.maximum(number - 1, 0))), found


def splits_of_levels(env: TextEnvironment, params: Any, levels: Int8[np.ndarray, "N H W"]) -> Int32[np.ndarray, " N"]:
    """Returns the split of each level. Runs on the host."""
    return _of_starts(split_of_level, env, params, levels)


def level_hashes(env: TextEnvironment, params: Any, levels: Int8[np.ndarray, "N H W"]) -> UInt32[np.ndarray, "N 2"]:
    """Returns the hash of each level's content. Runs on the host."""
    return _of_starts(type(env).level_hash, env, params, levels)


def state_hashes(env: TextEnvironment, params: Any, levels: Int8[np.ndarray, "N H W"]) -> UInt32[np.ndarray, "N 2"]:
    """Returns the hash of each level's first state, see `TextEnvironment.state_hash`. Runs on the host."""
    return _of_starts(type(env).state_hash, env, params, levels)


def fixed_levels(env: TextEnvironment, params: Any, levels: Int8[np.ndarray, "N H W"]) -> Bool[np.ndarray, " N"]:
    """Returns which levels are test levels in any case, see `TextEnvironment.test_levels`. Runs on the host."""
    if not len(env.test_levels):
        return np.zeros(len(levels), bool)
    return _of_starts(_is_fixed, env, params, levels)


def distinct_levels(env: TextEnvironment, params: Any, draws: int) -> dict[Split, int]:
    """Returns how many different levels of each split occur in `draws` draws from a fixed key. Runs on the host."""
    keys = jax.random.split(jax.random.key(_KEYS), draws)
    hashes, splits = map(np.asarray, _drawn(env, keys, params))
    return {split: len(np.unique(hashes[splits == split], axis=0)) for split in SHARES}


def _of_starts(of_state: Callable[..., Array], env: TextEnvironment, params: Any, levels: np.ndarray) -> np.ndarray:
    """`of_state(env, state, params)` of the first state of each level."""
    return np.asarray(_of_each_start(of_state, env, params, jnp.asarray(levels)))


# Programs are kept by environment; equal environments share one.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _of_each_start(of_state: Callable[..., Array], env: TextEnvironment, params: Any, levels: jax.Array) -> jax.Array:
    return jax.vmap(lambda level: of_state(env, env.reset_to_level(level, params)[1], params))(levels)


@functools.partial(jax.jit, static_argnums=0)
def _drawn(env: TextEnvironment, keys: jax.Array, params: Any) -> tuple[jax.Array, jax.Array]:
    def one(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        state = env.reset_env(key, params)[1]
        return env.level_hash(state, params), split_of_level(env, state, params)

    return jax.vmap(one)(keys)


def grid_hash(board: Int8[Array, "H W"], surrounding: int | None = None) -> UInt32[Array, "2"]:
    """Hashes a board, equal for its rotations and mirror images, and for shifts if `surrounding` is given.

    A policy that has seen a board has nearly seen its images, so all belong to the same split. `surrounding` is the
    code of the cells around a level, of which any number of rows and columns mean the same; None if the edge of the
    board matters.
    """
    images = grid_images(board)
    if surrounding is not None:
        missing = [(0, max(board.shape) - size) for size in board.shape]
        square = jnp.pad(board, missing, constant_values=surrounding)
        images = [_to_corner(image, surrounding) for image in grid_images(square)]
    hashes = jax.vmap(hash_integers)(jnp.stack(images))
    first = jnp.min(hashes[:, 0])
    second = jnp.min(jnp.where(hashes[:, 0] == first, hashes[:, 1], jnp.uint32(0xFFFFFFFF)))
    return jnp.stack([first, second])


def grid_images(board: Any) -> list[Any]:
    """Returns the images of a board [H, W] under rotations and reflections that keep its shape: 8 if square, else 4."""
    turned = [board, board.T] if board.shape[0] == board.shape[1] else [board]
    return [image[::down, ::right] for image in turned for down in (1, -1) for right in (1, -1)]


def shifted_images(board: Int8[np.ndarray, "H W"], surrounding: int) -> list[Int8[np.ndarray, "H W"]]:
    """Returns the different boards of the same size and `grid_hash` as a board, itself first. Runs on the host."""
    rows, columns = (np.flatnonzero((board != surrounding).any(axis=axis)) for axis in (1, 0))
    if not len(rows):
        return [board]
    inside = board[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    images = {board.tobytes(): board}
    for turned in (inside, inside.T):
        free_rows, free_columns = np.subtract(board.shape, turned.shape)
        for image in (turned[::down, ::right] for down in (1, -1) for right in (1, -1)):
            for down, right in np.ndindex(max(free_rows + 1, 0), max(free_columns + 1, 0)):
                placed = np.full_like(board, surrounding)
                placed[down : down + image.shape[0], right : right + image.shape[1]] = image
                images.setdefault(placed.tobytes(), placed)
    return list(images.values())


def _to_corner(board: Int8[Array, "N N"], surrounding: int) -> Int8[Array, "N N"]:
    """Shifts what is not surrounding to the first row and column."""
    inside = board != surrounding
    first = jnp.argmax(jnp.any(inside, axis=1)), jnp.argmax(jnp.any(inside, axis=0))
    return jnp.roll(board, jnp.negative(jnp.stack(first)), axis=(0, 1))
