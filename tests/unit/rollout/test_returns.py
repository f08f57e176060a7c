"""Rewards of turns: parts by their kinds, added where they apply."""

import numpy as np
import pytest
from made_up import CUT_OFF
from parted_episodes import EPISODES_OF_TWO, FULL, LAST, LENGTH, MOVED, PLAYED, SUCCESS, TASK, rule_with

from agentrl_jax.config.rewards import Cut, Environment, Format, Info, Overlong, Success, Tokens, Truncated, Turns
from agentrl_jax.rollout.returns import part_values, total_returns, turn_rewards


@pytest.mark.parametrize(
    ("section", "numbers", "expected"),
    [
        (Environment(), {}, np.asarray(EPISODES_OF_TWO.turn.reward)),
        (Success(), {}, SUCCESS),
        (Format(), {}, np.asarray(EPISODES_OF_TWO.turn.format_error)),
        (Overlong(), {"x.buffer": 0.4}, np.clip((LENGTH - 0.6 * FULL) / (0.4 * FULL), 0.0, 1.0)),
        (Tokens(), {}, LENGTH),
        (Turns(), {}, PLAYED),
        (Truncated(), {}, LAST & (np.asarray(CUT_OFF.truncation) > 0)[:, None]),
        (Cut(), {}, (LENGTH == FULL) & ~np.asarray(EPISODES_OF_TWO.response.ended)),
        (Info(key="moved"), {}, MOVED),
    ],
    ids=lambda each: getattr(each, "kind", None),
)
def test_a_part_is_what_its_kind_says(section, numbers, expected):
    rule = rule_with(numbers, x=section)
    found = part_values(EPISODES_OF_TWO, rule)
    assert expected.any()
    np.testing.assert_allclose(found["x"].value, np.where(PLAYED, expected, 0.0), atol=1e-6)
    # A part that is the reward of the environment takes its place.
    assert [*found] == (["x"] if section.kind == "environment" else ["environment", "x"])


def test_a_part_is_added_where_it_applies():
    rule = rule_with({"tokens.weight": -0.5}, (1,), tokens=Tokens())
    expected = EPISODES_OF_TWO.turn.reward - 0.5 * LENGTH * (TASK == 1)[:, None]
    np.testing.assert_allclose(turn_rewards(EPISODES_OF_TWO, rule), np.where(PLAYED, expected, 0.0), rtol=1e-6)
    nothing = rule_with({"tokens.weight": -0.5}, (7,), tokens=Tokens())
    np.testing.assert_array_equal(total_returns(EPISODES_OF_TWO, nothing), np.sum(EPISODES_OF_TWO.turn.reward, axis=1))
