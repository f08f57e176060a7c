"""Many levels of BabyAI's generator: what each has, and their distribution against MiniGrid's."""

import hashlib

import jax
import numpy as np
import pytest
from babyai_levels import ALL, Levels, draw, measure, numbers_of, p_value
from babyai_rules import REFERENCE, can_be_fulfilled, check

from envs_jax.babyai import generator, items
from envs_jax.babyai.generator import make_generator, shape_of


def test_levels_are_as_their_recipe_says():
    found = Levels(draw(upstream=False, count=8192), shape_of(ALL))
    for number in ALL:
        check(number, found.of(number))


def test_the_stored_items_that_nobody_can_solve_are_known():
    indices = np.array(items.stored_indices())
    stored = Levels(items.load(tuple(indices)), items.SHAPE)
    failed = [indices[stored.number == number][~can_be_fulfilled(stored.of(number))] for number in ALL]
    assert sorted(np.concatenate(failed).tolist()) == list(items.UNSOLVABLE)


def test_the_levels_with_slips_of_a_key_are_those_of_earlier_versions(monkeypatch):
    monkeypatch.setattr(generator, "MAX_TRIES", 1)
    slips = (10, 4, 7, 11, 24, 27)
    program = jax.jit(jax.vmap(make_generator(slips, shape_of(slips), upstream=True)))
    found = np.asarray(program(jax.random.split(jax.random.key(0), 512)))
    digest = "b85b0f5ad58bdce6de274196a2690ec7ddee8188fa99e8285f514505fb1bf9df"
    assert hashlib.sha256(found.tobytes()).hexdigest() == digest


@pytest.fixture(scope="module")
def many():
    """More than 10,000 levels of each number, with MiniGrid's slips, and which of them are of their first layout."""
    options = {"upstream": True, "count": 103 * 4096, "seed": 1}
    arrays = draw(**options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generator, "MAX_TRIES", 1)
        return arrays, numbers_of(draw(**options)) > 0


def test_distributions_are_those_of_minigrid(many):
    arrays, _ = many
    p_values = {}
    for number in ALL:
        chosen = arrays[numbers_of(arrays) == number]
        assert len(chosen) >= 10_000
        ours = measure(Levels(chosen, shape_of(ALL)))
        for name, theirs in REFERENCE[number].items():
            if isinstance(theirs, dict) and name not in ("rejected", "stuck"):
                p_values[number, name] = p_value(ours.get(name, {}), theirs)
    low = {key: p for key, p in p_values.items() if p < 0.001 / len(p_values)}
    assert len(p_values) > 1000
    assert not low


def test_as_many_layouts_are_rejected_as_by_minigrid(many):
    """The share of first layouts that are accepted here, and of all layouts there."""
    arrays, accepted_at_once = many
    p_values = {}
    for number in ALL:
        at_once, reference = accepted_at_once[numbers_of(arrays) == number], REFERENCE[number]
        # MiniGrid rejects a layout of level 9 with a red or blue ball among its seven things; here none is drawn.
        accepted = round(at_once.sum() * ((16 / 18) ** 7 if number == 9 else 1))
        rejected = sum(int(value) * count for name in ("rejected", "stuck") for value, count in reference[name].items())
        ours = {"accepted": accepted, "rejected": len(at_once) - accepted}
        p_values[number] = p_value(ours, {"accepted": reference["seeds"], "rejected": rejected})
    assert not {number: p for number, p in p_values.items() if p < 0.001 / len(p_values)}
