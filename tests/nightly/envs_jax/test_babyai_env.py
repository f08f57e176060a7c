"""Slow checks of what the quick tests of the same name check."""

from babyai_games import PARAMS, RED_BALLS, SMALL, small_items

from envs_jax.babyai import baselines, macros
from envs_jax.babyai.search import shortest_plans

BOARDS = small_items(RED_BALLS[:6])


def test_stored_plans_count_where_they_solve_the_level(monkeypatch):
    (plan, *_) = shortest_plans(SMALL, PARAMS, BOARDS[:1], 20)
    stored = {BOARDS[0].tobytes(): plan.actions, BOARDS[1].tobytes(): (macros.TURN_LEFT,)}
    monkeypatch.setattr(baselines, "_stored_plans", lambda: stored)
    lengths = baselines._lengths_of_stored_plans(SMALL, PARAMS, BOARDS[:3], 20)
    assert lengths.tolist() == [len(plan.actions), -1, -1]
    assert set(baselines._lengths_of_stored_plans(SMALL, PARAMS, BOARDS[:3], 0)) == {-1}
