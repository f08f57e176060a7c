import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentrl_jax.algos import level_sampling as sampling

POOL = sampling.LevelPool(
    level=jnp.array([7, 3, 9, -5, 4]),
    score=jnp.array([0.5, 0.2, 0.5, 0.0, 0.0]),
    played=jnp.array([1, 2, 1, 1, 0]),
    last=jnp.array([3, 1, 0, 4, -1]),
)
"""Five levels, of which the last one was not played yet."""
BY_RANK = np.array([12, 4, 12, 3, 0]) / 31  # 1, 1/3, 1, 1/4
BY_SPREAD = np.array([5, 2, 5, 0, 0]) / 12
BY_AGE = np.array([2, 4, 5, 1, 0]) / 12  # in iteration 5
NEW = np.array([0, 0, 0, 0, 1])


def shares(kind="rank", pool=POOL, temperature=1.0, staleness=0.0, new=0.0):
    return np.asarray(sampling.probabilities(pool, jnp.int32(5), kind, sampling.Priority(temperature, staleness, new)))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda: shares(), BY_RANK),
        (lambda: shares("proportional"), BY_SPREAD),
        (lambda: shares(temperature=0.5), BY_RANK**2 / np.sum(BY_RANK**2)),
        (lambda: shares(staleness=0.25, new=0.2), 0.8 * (0.75 * BY_RANK + 0.25 * BY_AGE) + 0.2 * NEW),
        (lambda: shares(pool=sampling.new_pool(jnp.arange(4)), new=0.5), np.full(4, 0.25)),
        (
            lambda: shares(pool=POOL.replace(played=POOL.played + 1), new=0.5)[:2],
            [1 / 1, 1 / 3] / np.sum([1, 1 / 3, 1, 0.5]),
        ),
        (lambda: shares("proportional", POOL.replace(score=jnp.zeros(5))), [0.25, 0.25, 0.25, 0.25, 0]),
        (lambda: shares("proportional", POOL.replace(score=jnp.zeros(5), played=NEW)), NEW),
    ],
    ids=["rank", "spread", "temperature", "age and new", "none played", "all played", "no spread", "one played"],
)
def test_the_probabilities_of_levels_are_those_of_prioritized_replay(found, expected):
    found, expected = found()[: len(expected)], np.asarray(expected)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_levels_are_drawn_with_their_probabilities_and_without_replacement():
    numbers = sampling.Priority(1.0, 0.25, 0.2)

    def draw(key):
        return sampling.choose_by_priority(key, POOL, 3, jnp.int32(5), "rank", numbers)

    drawn = np.asarray(jax.vmap(draw)(jax.random.split(jax.random.key(0), 4000)))
    expected = shares(staleness=0.25, new=0.2)
    first = np.bincount(drawn[:, 0], minlength=5) / len(drawn)
    np.testing.assert_allclose(first, expected, atol=4 * np.sqrt(0.25 / len(drawn)))
    assert all(len({*row}) == 3 for row in drawn.tolist())
    # The second one is drawn from what is left.
    second = np.bincount(drawn[:, 1], minlength=5) / len(drawn)
    left = [sum(p * expected[i] / (1 - p) for j, p in enumerate(expected) if j != i) for i in range(5)]
    np.testing.assert_allclose(second, left, atol=4 * np.sqrt(0.25 / len(drawn)))


def test_every_level_is_played_once_before_any_is_played_again():
    pool, passes = sampling.new_pool(jnp.arange(10, 16)), []
    for iteration in range(6):
        chosen = sampling.choose_evenly(jax.random.key(iteration), pool, 2)
        passes += chosen.tolist()
        known = jnp.ones(2, bool)
        pool = sampling.observe(pool, pool.level[chosen], jnp.zeros(2), known, jnp.int32(iteration))
    assert sorted(passes[:6]) == sorted(passes[6:]) == list(range(6))
    assert passes[:6] != passes[6:]
    assert pool.played.tolist() == [2] * 6


def test_a_group_says_something_of_its_level_unless_it_failed():
    level, spread = jnp.array([9, 4, 3]), jnp.array([0.1, 0.3, 0.7])
    pool = sampling.observe(POOL, level, spread, jnp.array([True, True, False]), jnp.int32(6))
    assert pool.score.tolist() == pytest.approx([0.5, 0.2, 0.1, 0.0, 0.3])
    assert pool.played.tolist() == [1, 2, 2, 1, 1]
    assert pool.last.tolist() == [3, 1, 6, 4, 6]
    found = {name: float(value) for name, value in sampling.summary(POOL, jnp.int32(5)).items()}
    assert found == pytest.approx({"different": 4, "with_signal": 0.75, "score": 0.3, "age": 3.0})
