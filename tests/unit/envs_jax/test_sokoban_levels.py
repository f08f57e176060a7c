"""The generators: their statistics against those measured on RAGEN's generator."""

import chex
import host_levels
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xla_settings
from host_levels import generate_pack, plan_length

from envs_jax.sokoban import TAGS, generator
from envs_jax.sokoban.generator import make_generator
from envs_jax.sokoban.levels import check_level
from envs_jax.sokoban.oracle import plan_lengths, random_success

SIMPLE_LENGTHS = {1: 8.9, 2: 24.1, 3: 10.3, 4: 14.7, 5: 16.9, 6: 10.0, 7: 5.6, 8: 5.5, 9: 2.0, 10: 1.3}
SIMPLE_DISPLACEMENTS = {1: 28.5, 2: 41.3, 3: 22.8, 4: 7.4}


def shares(values, bins):
    """Percentage of the values that equal each bin."""
    return np.array([100 * np.mean(np.asarray(values) == b) for b in bins])


def displacements(levels):
    """Smallest total distance of boxes to targets over the pairings, i64[N] (one or two boxes)."""
    result = []
    for level in levels:
        boxes, targets = np.argwhere(level == 4), np.argwhere((level == 2) | (level == 6))
        distance = np.abs(boxes[:, None] - targets).sum(-1)
        result.append(min(np.trace(distance), np.trace(distance[:, ::-1])))
    return np.array(result)


def draw(tag, count):
    env, _ = TAGS[tag]()
    with xla_settings.optimized():
        return np.asarray(jax.jit(jax.vmap(env.generator))(jax.random.split(jax.random.key(1), count)))


@pytest.fixture(scope="module")
def simple():
    return draw("SimpleSokoban", 2048)


@pytest.fixture(scope="module")
def larger():
    return draw("LargerSokoban", 1024)


def check_all(levels, boxes):
    for number, level in enumerate(levels):
        check_level(level, f"level {number}")
    assert (np.isin(levels, (3, 4)).sum((1, 2)) == boxes).all()
    assert not (levels == 3).any()
    assert (levels[:, [0, -1], :] == 0).all()
    assert (levels[:, :, [0, -1]] == 0).all()


@pytest.mark.parametrize("tag", ["SimpleSokoban", "LargerSokoban"])
def test_a_level_does_not_depend_on_the_others_of_its_batch(tag, request):
    """In a batch, the search goes on with fewer rows as levels are finished."""
    batch = request.getfixturevalue({"SimpleSokoban": "simple", "LargerSokoban": "larger"}[tag])
    env, _ = TAGS[tag]()
    keys = jax.random.split(jax.random.key(1), len(batch))
    with xla_settings.optimized():
        alone = jax.jit(env.generator)
        chex.assert_trees_all_equal(batch[::97], np.stack([alone(key) for key in keys[::97]]))


def test_simple_levels_follow_the_original(simple):
    check_all(simple, 1)
    lengths = [plan_length(level) for level in simple]
    assert None not in lengths
    np.testing.assert_allclose(shares(lengths, SIMPLE_LENGTHS), [*SIMPLE_LENGTHS.values()], atol=3)
    found = shares(displacements(simple), SIMPLE_DISPLACEMENTS)
    np.testing.assert_allclose(found, [*SIMPLE_DISPLACEMENTS.values()], atol=3)
    assert found.sum() > 99.5
    np.testing.assert_allclose(np.mean(lengths), 4.14, atol=0.2)
    floors = (simple > 0).sum((1, 2))
    np.testing.assert_allclose(floors.mean(), 10.7, atol=0.2)
    assert floors.min() >= 4
    assert floors.max() <= 16


def test_simple_baselines(simple):
    """Random success in 10 actions is 18 to 19 % in the original; one standard error here is half a point."""
    for budget, low, high in ((5, 0.10, 0.125), (10, 0.17, 0.20), (25, 0.27, 0.30)):
        assert low < random_success(simple, budget)[:, -1].mean() < high
    assert (plan_lengths(simple, 10) >= 0).mean() > 0.985


def test_larger_levels_follow_the_original(larger):
    check_all(larger, 2)
    lengths = np.array([plan_length(level) for level in larger], float)
    assert np.isfinite(lengths).all()
    np.testing.assert_allclose(lengths.mean(), 5.82, atol=0.2)
    np.testing.assert_allclose(100 * (lengths <= 5).mean(), 45.3, atol=3)
    np.testing.assert_allclose(100 * (lengths <= 10).mean(), 99.5, atol=1)
    np.testing.assert_allclose((larger > 0).sum((1, 2)).mean(), 18.2, atol=0.5)
    assert 0.02 < random_success(larger, 10)[:, -1].mean() < 0.032
    assert (plan_lengths(larger, 10) >= 0).mean() > 0.98


@pytest.mark.slow
def test_other_symbols_same_difficulty():
    levels = draw("SokobanDifferentGridVocab", 1024)
    check_all(levels, 1)
    lengths = [plan_length(level) for level in levels]
    np.testing.assert_allclose(np.mean(lengths), 4.11, atol=0.2)
    assert 0.16 < random_success(levels, 10)[:, -1].mean() < 0.20
    assert (plan_lengths(levels, 10) >= 0).mean() > 0.985


def test_a_level_depends_on_its_key_only(simple):
    env, _ = TAGS["SimpleSokoban"]()
    alone = jax.jit(env.generator)(jax.random.split(jax.random.key(1), 2048)[5])
    np.testing.assert_array_equal(alone, simple[5])
    assert alone.dtype == jnp.int8
    assert len(np.unique(simple, axis=0)) > 1200


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
    """On the same rooms: breadth-first search with the documented ties for one box, the original's search for two."""
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


def test_host_packs_follow_the_original():
    levels = generate_pack(range(1500))
    check_all(levels, 1)
    lengths = [plan_length(level) for level in levels]
    np.testing.assert_allclose(shares(lengths, SIMPLE_LENGTHS), [*SIMPLE_LENGTHS.values()], atol=3)
    found = shares(displacements(levels), SIMPLE_DISPLACEMENTS)
    np.testing.assert_allclose(found, [*SIMPLE_DISPLACEMENTS.values()], atol=3)
    assert 0.165 < random_success(levels, 10)[:, -1].mean() < 0.20


def test_host_packs_share_the_law_of_larger_device_levels(larger):
    levels = generate_pack(range(1000), 8, 8, boxes=2, search_depth=10)
    check_all(levels, 2)
    bins = range(1, 8)
    # Two samples of a thousand: one standard error of the difference is at most 2.2 points.
    np.testing.assert_allclose(shares(displacements(levels), bins), shares(displacements(larger), bins), atol=5)


def test_host_packs_depend_on_their_seeds_only():
    levels = generate_pack([3, 1], 7, 5, boxes=3, search_depth=20)
    chex.assert_shape(levels, (2, 7, 5))
    assert levels.dtype == np.int8
    np.testing.assert_array_equal(levels[1], generate_pack([1], 7, 5, boxes=3, search_depth=20)[0])
    chex.assert_shape(generate_pack([]), (0, 6, 6))


def test_options_out_of_range_are_refused():
    with pytest.raises(ValueError, match="4x6; expected 5x5 to 32x32"):
        make_generator(4, 6, 1, 300)
    with pytest.raises(ValueError, match="6x33; expected 5x5 to 32x32"):
        make_generator(6, 33, 1, 300)
    with pytest.raises(ValueError, match="expected 1 or 2: write a pack"):
        make_generator(6, 6, 3, 300)
    with pytest.raises(ValueError, match="search_depth is 3; expected 4"):
        make_generator(6, 6, 2, 3)
    with pytest.raises(ValueError, match="sides of at least 5"):
        generate_pack([0], 4, 6)
    with pytest.raises(ValueError, match="at search depth 3 was asked for"):
        generate_pack([0], boxes=2, search_depth=3)
    with pytest.raises(RuntimeError, match="seed 0: no 5x5 level with 8 boxes"):
        generate_pack([0], 5, 5, boxes=8)
