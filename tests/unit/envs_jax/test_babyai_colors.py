"""Levels in other colors: the same game in other words."""

import jax
import numpy as np
from babyai_games import LARGE

from envs_jax.babyai import PrimitiveBabyAI, codes, colors, items, macros

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
