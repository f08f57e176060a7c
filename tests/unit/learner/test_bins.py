import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.learner import bins


@pytest.mark.parametrize("lengths", [[3, 9, 0, 4, 4, 10, 1], [0, 0], [10] * 4, [1] * 12, [5, 6, 5, 4, 5, 5]], ids=str)
def test_every_token_is_in_one_bin_beside_those_of_its_row(lengths):
    """First-fit decreasing, computed plainly; the fullest bins come first, and empty rows are nowhere."""
    lengths = lengths + [0] * (12 - len(lengths))  # one shape, so that it is compiled once
    count, size = len(lengths), 10
    draw = np.random.default_rng(0)
    tokens = draw.integers(1, 99, (count, size))
    found = bins.assign(jnp.array(lengths), size)
    rooms = []
    for length in sorted(lengths, reverse=True):
        fits = [index for index, room in enumerate(rooms) if room >= length]
        if length and not fits:
            rooms.append(size)
            fits = [len(rooms) - 1]
        if length:
            rooms[fits[0]] -= length
    used = {int(index) for index, length in zip(found.bin, lengths) if length}
    assert used == set(range(len(rooms)))
    position = jnp.maximum(jnp.array(lengths)[:, None] - 1, 1)
    mask = (jnp.array(lengths) > 1)[:, None]
    filled = bins.fill(found, jnp.array(tokens), position, mask, jnp.arange(1.0, count + 1))
    totals = np.sum(np.asarray(filled.segment) > 0, axis=1)
    assert sorted(totals, reverse=True) == totals.tolist()
    assert sorted(size - np.array(rooms)) == sorted(totals[: len(rooms)])
    for row, length in enumerate(lengths):
        where = np.asarray(filled.segment) == row + 1
        assert where.sum() == length
        np.testing.assert_array_equal(np.asarray(filled.tokens)[where], tokens[row, :length])
        assert set(np.asarray(filled.temperature)[where].tolist()) <= {row + 1.0}
        if length > 1:
            assert np.flatnonzero(np.asarray(filled.mask)[where]).tolist() == [length - 1]
            back = bins.unpack(found, filled, jnp.where(where, 7.0, 0.0), position)
            assert back[row, 0] == 7.0
            assert bins.are_in(found, filled)[row]
