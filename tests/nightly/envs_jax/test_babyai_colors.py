"""A level of every kind in other colors: the same game in other words."""

import re

import babyai_fixtures as recorded
import jax
import numpy as np
from babyai_games import UPSTREAM
from babyai_parity import play, sent, text_of

from envs_jax.babyai import codes, colors, items

INDICES = tuple(range(40))
GREEDY = 2
"""A kind of recorded sequences."""
KEY = jax.random.key(5)
COLOR = re.compile("|".join(codes.COLOR_NAMES))


def test_everything_but_the_names_of_colors_is_equal():
    """In recorded play of an item of every level, and in the same actions on its image."""
    traces, levels, count = recorded.read("traces"), items.load(INDICES), len(INDICES)
    greedy = np.flatnonzero(traces["sequence_kind"] == GREEDY)
    rows = greedy[np.searchsorted(traces["index"][traces["sequence_item"][greedy]], INDICES)]
    actions = [sent(row) for row in rows]
    images, others = colors.permute(UPSTREAM, levels, actions, KEY)
    assert (np.stack(actions) != np.stack(others)).any()
    first, after = play(np.concatenate([levels, images]), [*actions, *others])
    for name in ("reward", "score", "done", "steps", "strict"):
        np.testing.assert_array_equal(after[name][:count], after[name][count : 2 * count])
    assert np.max(after["score"][:count]) > 0.5
    different = 0
    shown = np.concatenate([first["text"][:, None], after["text"]], axis=1)
    for row, of_level in enumerate(colors.permutations(count, KEY)):
        new = {name: codes.COLOR_NAMES[of_level[number]] for number, name in enumerate(codes.COLOR_NAMES)}
        for pieces, other in zip(shown[row], shown[count + row]):
            text, image = text_of(UPSTREAM, pieces), text_of(UPSTREAM, other)
            assert image == COLOR.sub(lambda found, new=new: new[found[0]], text), INDICES[row]
            different += image != text
    assert different > count
