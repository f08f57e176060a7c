"""The generators: their statistics against those measured on RAGEN's generator."""

import hashlib

import jax
import numpy as np
import pytest
from sokoban_boards import SIMPLE_LENGTHS, TWO_BOXES, check_all, generate, generate_pack

from envs_jax.sokoban import TAGS
from envs_jax.sokoban.generator import make_generator
from envs_jax.sokoban.oracle import plan_lengths, random_success, solve

KEYS = jax.random.split(jax.random.key(1), 1024)


@pytest.fixture(scope="module")
def simple():
    options = {"height": 6, "width": 6, "boxes": 1, "search_depth": 300}
    assert TAGS["SimpleSokoban"]()[0].generator.keywords == options
    return generate(KEYS, *options.values())


def test_simple_levels_follow_the_original(simple):
    check_all(simple, 1)
    others = generate(KEYS[::-1], 6, 6, 1, 300)[::-1]
    np.testing.assert_array_equal(others, simple)  # each depends on its key alone
    assert simple.dtype == np.int8
    assert len(np.unique(simple, axis=0)) > 600
    lengths = [len(solve(level)) for level in simple]
    shares = [100 * lengths.count(length) / len(lengths) for length in SIMPLE_LENGTHS]
    np.testing.assert_allclose(shares, [*SIMPLE_LENGTHS.values()], atol=5)
    np.testing.assert_allclose(np.mean(lengths), 4.14, atol=0.25)
    np.testing.assert_allclose((simple > 0).sum((1, 2)).mean(), 10.7, atol=0.2)
    # Random success in 10 actions is 18 to 19 % in the original; one standard error here is half a point.
    found = random_success(simple, 25)[:, [5, 10, 25]].mean(axis=0)
    np.testing.assert_allclose(found, [0.1125, 0.185, 0.285], atol=0.0151)
    assert (plan_lengths(simple, 10) >= 0).mean() > 0.985


DIGESTS = {
    None: "4e95fb3d5b4c7bc2ec691b20cdceef43d23fdf45f50222728157c11075fd45ee",
    TWO_BOXES: "c768571719f6e04e828dd1b1f87c3e74bcde42eccbd101dc67b09d241a9fc10b",
}
"""Of 6x6 with one box, and of the options; the reverse play of that version was compared with a slow search."""


@pytest.mark.parametrize("options", DIGESTS)
def test_the_levels_of_a_key_are_those_of_earlier_versions(options, request):
    levels = generate_pack(range(64), *options) if options else request.getfixturevalue("simple")
    assert hashlib.sha256(levels.tobytes()).hexdigest() == DIGESTS[options]


def test_options_out_of_range_are_refused():
    for options, message in (
        ((4, 6, 1, 300), "4x6; expected 5x5 to 32x32"),
        ((6, 33, 1, 300), "6x33; expected 5x5 to 32x32"),
        ((6, 6, 3, 300), "expected 1 or 2: write a pack"),
        ((6, 6, 2, 3), "search_depth is 3; expected 4"),
    ):
        with pytest.raises(ValueError, match=message):
            make_generator(*options)
