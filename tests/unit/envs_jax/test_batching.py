"""Loops over rows, and sets as bits, beside plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs_jax.babyai.bits import nth, nth_bit, nth_number, pack
from envs_jax.batching import in_turns, on_rows, while_active


@pytest.mark.parametrize("rows", [1, 31, 128, 600])
def test_a_loop_with_fewer_and_fewer_rows_takes_each_to_its_own_end(rows):
    ends = jax.random.randint(jax.random.key(rows), (rows,), 0, 40)
    begins = jax.random.randint(jax.random.key(rows + 1), (rows,), 0, 10)

    def step(active, state, ends):
        state = jnp.where(active, state + 1, state)
        return active & (state < ends), state

    found = jax.jit(lambda: while_active(step, begins < ends, begins, ends))()
    np.testing.assert_array_equal(found, np.maximum(begins, ends))


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (100, 7), (64, 64)])
def test_steps_in_turns_are_taken_once_in_the_active_rows_alone(rows, size):
    state, given = jnp.arange(rows), 100 * jnp.arange(1, rows + 1)
    program = jax.jit(lambda active: in_turns(lambda _, state, given: state + given, active, state, given, size))
    for share in (0.0, 0.3, 1.0):
        active = np.random.default_rng(0).random(rows) < share
        np.testing.assert_array_equal(program(active), np.where(active, state + given, state))


@pytest.mark.parametrize(("size", "words"), [(5, 1), (32, 1), (84, 3)])
def test_numbers_of_a_set_are_found_by_rank(size, words):
    included = np.random.default_rng(size).random((50, size)) < 0.4
    packed = np.asarray(jax.jit(pack, static_argnums=1)(included, words))
    for row, bits in zip(included, packed):
        assert sum(int(word) << 32 * number for number, word in enumerate(bits)) == sum(
            1 << int(one) for one in np.flatnonzero(row)
        )
    rows, numbers = np.nonzero(included)
    ranks = np.cumsum(included, axis=1)[rows, numbers] - 1
    np.testing.assert_array_equal(jax.jit(nth_number)(packed[rows], ranks), numbers)
    # The element of a rank is in the group that counts say.
    counts = np.array([3, 0, 2, 5])
    groups, ranks = nth(jnp.asarray(counts)[None], jnp.arange(counts.sum()))
    np.testing.assert_array_equal(groups, np.repeat(np.arange(4), counts))
    np.testing.assert_array_equal(ranks, np.concatenate([np.arange(count) for count in counts]))
    assert int(nth_bit(jnp.int32(0b1011000), jnp.int32(2))) == 6


def test_a_function_on_rows_sees_all_rows_of_every_level_of_vmap():
    function = on_rows(lambda x, y: x + y - jnp.min(x + y))
    x, y = jnp.arange(12.0).reshape(2, 3, 2), jnp.array([10.0, 20.0])
    np.testing.assert_array_equal(function(x[0, 0], y), [0.0, 11.0])
    found = jax.vmap(lambda x, y: jax.vmap(function, (0, None))(x, y))(x, jnp.broadcast_to(y, (2, 2)))
    np.testing.assert_array_equal(found, x + y - 10.0)
