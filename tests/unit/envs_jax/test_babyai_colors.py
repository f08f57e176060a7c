"""Levels in other colors: the same game in other words."""

import re

import jax
import numpy as np
import pytest
from babyai_games import LARGE, walk

from envs_jax.babyai import PrimitiveBabyAI, codes, colors, items, macros, plans

KEY = jax.random.key(5)


def test_actions_that_name_no_color_stay():
    ids = np.array([-1, -2, macros.DROP_IT, macros.CHECK, macros.STARTS[0], macros.STARTS[-1] - 1], np.int32)
    turned = np.roll(np.arange(codes.COLORS), 1)
    found, names = colors.actions(ids, turned), macros.action_names()
    assert (found[:4] == ids[:4]).all()
    assert [names[x] for x in ids[4:]] == ["pickup red key 1", "toggle and go through grey locked door 9"]
    assert [names[x] for x in found[4:]] == ["pickup grey key 1", "toggle and go through yellow locked door 9"]
    assert (colors.actions(found, np.argsort(turned)) == ids).all()
    images, same = colors.permute(PrimitiveBabyAI(items.SHAPE), items.load((0,)), [ids], KEY)
    assert (images == colors.permute(LARGE, items.load((0,)), [ids], KEY)[0]).all()
    assert (same[0] == ids).all(), "primitive actions have no names"


COLOR = re.compile("|".join(codes.COLOR_NAMES))


@pytest.mark.nightly
def test_everything_but_the_names_of_colors_is_equal():
    """On the way of a plan, and of the same plan on the level's image."""
    stored = {item: plan for item, plan in plans.stored().items() if plan}
    chosen, different = list(stored)[::40], 0
    levels = items.load(tuple(chosen))
    images, others = colors.permute(LARGE, levels, [np.array(stored[item], np.int32) for item in chosen], KEY)
    for row, of_level in enumerate(colors.permutations(len(chosen), KEY)):
        new = {name: codes.COLOR_NAMES[of_level[number]] for number, name in enumerate(codes.COLOR_NAMES)}
        shown = [walk(LARGE, *of) for of in ((levels[row], stored[chosen[row]]), (images[row], others[row]))]
        for (state, text), (image_state, image) in zip(*shown, strict=True):
            assert image == COLOR.sub(lambda found, new=new: new[found[0]], text), chosen[row]
            assert (image_state.reward, image_state.world.steps) == (state.reward, state.world.steps)
            different += image != text
        assert LARGE.success(image_state, LARGE.default_params)
    assert different > len(chosen) >= 20
