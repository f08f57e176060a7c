"""The content of a level decides its split, and a key gives a level of the requested split."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sokoban_boards import generate_pack

from envs_jax import registry, splits
from envs_jax.frozen_lake import FrozenLake
from envs_jax.splits import SHARES, Split

KEYS = jax.random.split(jax.random.key(3), 64)
PARTS = (Split.TRAIN, Split.VALIDATION, Split.TEST)


@functools.cache
def game(name):
    """An environment; levels of Sokoban come from a pack, because its generator takes long to compile."""
    env, params = registry.make(name)
    pack = generate_pack(range(300)) if name == "SimpleSokoban" else np.zeros((0, 4, 4), np.int8)
    return env, params.replace(levels=jnp.asarray(pack))


@functools.cache
def drawn(name: str, split: Split) -> np.ndarray:
    return registry.sample_levels(*game(name), KEYS, split)


@pytest.mark.parametrize("name", ["SimpleSokoban", "FrozenLake"])
def test_no_board_nor_an_image_of_it_is_drawn_for_two_splits(name):
    env, params = game(name)

    def images(split):
        return {image.tobytes() for board in drawn(name, split) for image in env.level_images(board)}

    train, validation, test = map(images, PARTS)
    assert not (train & validation) | (train & test) | (validation & test)
    for split in PARTS:
        assert (splits.splits_of_levels(env, params, drawn(name, split)) == split).all()


def test_the_level_of_a_key_is_a_function_of_key_and_split_alone():
    env, params = game("FrozenLake")
    others = jnp.concatenate([KEYS[5:9], jax.random.split(jax.random.key(4), len(KEYS) - 4)])
    for split in PARTS:
        some = registry.sample_levels(env, params, others, split)[:4]
        np.testing.assert_array_equal(some, drawn("FrozenLake", split)[5:9])
    alone = jax.jit(jax.vmap(lambda key: env.sample_level(key, params)))(KEYS)
    np.testing.assert_array_equal(drawn("FrozenLake", Split.ANY), alone)


def test_shares_of_the_contents_are_as_told():
    hashes = jax.random.bits(jax.random.key(0), (20_000, 2), jnp.uint32)
    shares = np.bincount(np.asarray(jax.jit(jax.vmap(splits.split_of))(hashes)), minlength=3) / len(hashes)
    np.testing.assert_allclose(shares, list(SHARES.values()), atol=0.01)
    # Neighboring values, such as hashes of short texts, are spread over the splits too.
    near = jnp.stack([jnp.arange(2000, dtype=jnp.uint32), jnp.zeros(2000, jnp.uint32)], axis=1)
    shares = np.bincount(np.asarray(jax.jit(jax.vmap(splits.split_of))(near)), minlength=3) / len(near)
    np.testing.assert_allclose(shares, list(SHARES.values()), atol=0.03)


@pytest.mark.parametrize("shape", [(3, 3), (2, 4)])
def test_images_of_a_board_share_their_hash_and_other_boards_do_not(shape):
    board = jnp.arange(np.prod(shape), dtype=jnp.int8).reshape(shape)
    images = splits.grid_images(board)
    assert len(images) == (8 if shape[0] == shape[1] else 4)
    *hashes, other = jax.jit(jax.vmap(splits.grid_hash))(jnp.stack([*images, board.at[0, 0].set(7)]))
    assert (np.stack(hashes) == hashes[0]).all()
    assert (other != hashes[0]).any()


@pytest.mark.parametrize("shape", [(5, 5), (4, 6)])
def test_shifted_boards_are_the_same_level_where_what_surrounds_them_means_nothing(shape):
    room = np.array([[1, 2, 0], [1, 1, 3]], np.int8)
    places = [
        (image, down, right)
        for turned in (room, room.T)
        for image in splits.grid_images(turned)
        for down in range(shape[0] - image.shape[0] + 1)
        for right in range(shape[1] - image.shape[1] + 1)
    ]
    boards = np.zeros((len(places), *shape), np.int8)
    for board, (image, down, right) in zip(boards, places):
        board[down : down + image.shape[0], right : right + image.shape[1]] = image
    hashed = jax.jit(jax.vmap(functools.partial(splits.grid_hash, surrounding=0)))
    assert len(np.unique(np.asarray(hashed(boards)), axis=0)) == 1
    found = splits.shifted_images(boards[3], surrounding=0)
    assert (found[0] == boards[3]).all()
    assert sorted(board.tobytes() for board in found) == sorted({board.tobytes() for board in boards})
    others = np.stack([np.where(boards[3] == 3, 2, boards[3]), boards[3] * 0])
    assert len(np.unique(np.asarray(hashed(np.concatenate([boards[:1], others]))), axis=0)) == 3
    assert len(np.unique(np.asarray(jax.jit(jax.vmap(splits.grid_hash))(boards)), axis=0)) > 1
    np.testing.assert_array_equal(splits.shifted_images(boards[0] * 0, surrounding=0), boards[:1] * 0)


def test_a_space_without_levels_of_a_split_is_told_by_the_flag_and_refused_by_name():
    env, params = registry.make("Bandit")
    counts = splits.distinct_levels(env, params, 64)
    assert sum(counts.values()) == 2
    empty = next(split for split, count in counts.items() if not count)
    chex.assert_equal(bool(splits.split_key(env, jax.random.key(0), params, empty)[1]), False)
    env, params = game("FrozenLake")
    pack = jnp.asarray(drawn("FrozenLake", Split.TEST)[:1])
    with pytest.raises(ValueError, match="no level of the train split"):
        registry.sample_levels(env, params.replace(levels=pack), KEYS[:2], Split.TRAIN)


def test_fixed_test_levels_are_never_trained_on():
    env, params = registry.make("FrozenLake", height=2, width=2)
    boards = registry.sample_levels(env, params, KEYS)
    wanted = boards[splits.splits_of_levels(env, params, boards) == Split.TRAIN][0]
    fixed = FrozenLake(2, 2)
    fixed.test_levels = splits.level_hashes(env, params, wanted[None])
    is_wanted = np.array([any((image == wanted).all() for image in env.level_images(board)) for board in boards])
    assert 0 < is_wanted.sum() < len(boards)
    np.testing.assert_array_equal(splits.fixed_levels(fixed, params, boards), is_wanted)
    assert not splits.fixed_levels(env, params, boards).any()
    assert (splits.splits_of_levels(fixed, params, boards)[is_wanted] == Split.TEST).all()
    kept = registry.sample_levels(fixed, params, KEYS, Split.NOT_FIXED)
    assert not splits.fixed_levels(fixed, params, kept).any()
    assert len(np.unique(kept, axis=0)) > len(np.unique(boards[~is_wanted], axis=0)) // 2
