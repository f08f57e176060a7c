"""The generators: their statistics against those measured on RAGEN's generator."""

import host_levels
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sokoban_law import SIMPLE_DISPLACEMENTS, SIMPLE_LENGTHS, check_all, displacements, shares

from envs_jax.sokoban import TAGS, generator
from envs_jax.sokoban.generator import make_generator
from envs_jax.sokoban.oracle import plan_lengths, random_success, solve

KEYS = jax.random.split(jax.random.key(1), 1024)


@pytest.fixture(scope="module")
def generate():
    return jax.jit(jax.vmap(TAGS["SimpleSokoban"]()[0].generator))


@pytest.fixture(scope="module")
def simple(generate):
    return np.asarray(generate(KEYS))


def test_a_level_depends_on_its_key_alone(generate, simple):
    others = generate(jnp.concatenate([KEYS[5:8], jax.random.split(jax.random.key(2), len(KEYS) - 3)]))
    np.testing.assert_array_equal(others[:3], simple[5:8])
    assert simple.dtype == np.int8
    assert len(np.unique(simple, axis=0)) > 600


def test_simple_levels_follow_the_original(simple):
    check_all(simple, 1)
    lengths = [len(solve(level)) for level in simple]
    np.testing.assert_allclose(shares(lengths, SIMPLE_LENGTHS), [*SIMPLE_LENGTHS.values()], atol=5)
    found = shares(displacements(simple), SIMPLE_DISPLACEMENTS)
    np.testing.assert_allclose(found, [*SIMPLE_DISPLACEMENTS.values()], atol=5)
    assert found.sum() > 99.5
    np.testing.assert_allclose(np.mean(lengths), 4.14, atol=0.25)
    np.testing.assert_allclose((simple > 0).sum((1, 2)).mean(), 10.7, atol=0.2)
    # Random success in 10 actions is 18 to 19 % in the original; one standard error here is half a point.
    found = random_success(simple, 25)[:, [5, 10, 25]].mean(axis=0)
    np.testing.assert_allclose(found, [0.1125, 0.185, 0.285], atol=0.0151)
    assert (plan_lengths(simple, 10) >= 0).mean() > 0.985


def slow_breadth_first(floor, player, target, limit):
    """Returns the best (displacement, player, box); ties go to fewer moves, then to player cell, then to box cell."""
    reached, frontier = {(player, target): 0}, [(player, target)]
    for moves in range(1, limit + 1):
        following = []
        for at, box in frontier:
            for down, right in generator.DIRECTIONS:
                ahead, behind = (at[0] + down, at[1] + right), (at[0] - down, at[1] - right)
                if ahead in floor and ahead != box:
                    position = (ahead, at if behind == box else box)
                    if position not in reached:
                        reached[position] = moves
                        following.append(position)
        frontier = following

    def merit(position):
        at, box = position
        distance = abs(box[0] - target[0]) + abs(box[1] - target[1])
        return -(distance if at != target else 0), reached[position], at, box

    best = min(reached, key=merit)
    return -merit(best)[0], *best


@pytest.mark.parametrize(("boxes", "side", "depth"), [(1, 6, 12), (2, 8, 10)])
def test_reverse_play_agrees_with_a_slow_search(boxes, side, depth):
    grid = generator._Grid(side - 2, side - 2)
    draws = 3 + 3 * int(1.7 * 2 * side)

    @jax.jit
    @jax.vmap
    def both(uniform):
        start, enough = generator._place(uniform[draws:], generator._room(uniform[:draws], grid), boxes)
        search = generator._search_one_box if boxes == 1 else generator._search_two_boxes
        return start, enough, search(grid, start, depth, enough)

    start, enough, found = jax.device_get(both(jax.random.uniform(jax.random.key(2), (300, draws + grid.size))))

    def at(index):
        return divmod(int(index), grid.columns)

    accepted = 0
    for i in range(300):
        if not enough[i]:
            assert found.displacement[i] == 0
            continue

        floor = {at(index) for index in np.flatnonzero(start.floor[i])}
        player, targets = at(start.player[i]), tuple(at(t) for t in start.targets[i])
        if boxes == 1:
            expected, player, box = slow_breadth_first(floor, player, targets[0], depth - 2)
            placed = (box,)
        else:
            player, placed, expected = host_levels._reverse_play(floor, player, targets, depth)
        assert found.displacement[i] == expected
        if expected:
            assert at(found.player[i]) == player
            assert tuple(at(box) for box in found.boxes[i]) == placed
            accepted += 1
    assert accepted > 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((4, 6, 1, 300), "4x6; expected 5x5 to 32x32"),
        ((6, 33, 1, 300), "6x33; expected 5x5 to 32x32"),
        ((6, 6, 3, 300), "expected 1 or 2: write a pack"),
        ((6, 6, 2, 3), "search_depth is 3; expected 4"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        make_generator(*options)
