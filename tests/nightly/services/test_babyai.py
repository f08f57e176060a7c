"""BabyAI: all recorded play, all plans, generated levels, and the panel by scripted policies."""

import pytest
from babyai_play import check_plans, check_recorded_answers, play

from agentrl_jax.evaluate.scripted import evaluate_scripted
from agentrl_jax.evaluate.scripted_report import as_table
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.environments import babyai
from envs_jax.babyai import items, plans

SERVICE = get_service("babyai")


def test_recorded_answers_of_the_original():
    check_recorded_answers(10)


def test_all_plans_reach_their_goals_by_either_rule():
    check_plans(1)


def test_the_oracle_plans_on_the_levels_that_are_played():
    """Generated levels of number 7 are others by AgentGym's rules, where a key may lie behind its own door."""
    item = 2006
    for upstream, oracle in ((False, SERVICE.oracle), (True, SERVICE.upstream_oracle)):
        answers = play(item, oracle(item).actions, upstream=upstream)
        assert SERVICE.solved(answers[-1])
    assert SERVICE.play_many("oracle", "", (item,), 20, 1, 0).solved.all()


@pytest.mark.parametrize("item", [33, 186])
def test_the_oracle_solves_items_that_a_full_search_gives_up(item):
    assert item not in plans.stored()
    for upstream, oracle in ((False, SERVICE.oracle), (True, SERVICE.upstream_oracle)):
        actions = oracle(item).actions
        assert 0 < len(actions) <= plans.ROUNDS
        assert SERVICE.solved(play(item, actions, upstream=upstream)[-1])
    assert SERVICE.play_many("oracle", "", (item,), plans.ROUNDS, 1, 0).solved.all()


@pytest.mark.parametrize("item", items.UNSOLVABLE)
def test_stored_levels_that_nobody_can_solve_are_replaced_by_default(item):
    there, here = (babyai.level_of(item, upstream=upstream) for upstream in (True, False))
    assert (there == items.load((item,))[0]).all()
    assert (here != there).any()
    assert here[items.SHAPE.height, 0] == there[items.SHAPE.height, 0] == items.number_of(item)
    assert (here == babyai.level_of(item, upstream=False)).all()
    assert SERVICE.solved(play(item, SERVICE.oracle(item).actions, upstream=False)[-1])
    assert item not in items.panel()


def test_the_panel_by_scripted_policies():
    random = evaluate_scripted("babyai", "random", plays=23)
    assert random["panel_digest"] == items.PANEL_DIGEST
    assert (random["items"], random["compat"], random["turns"]) == (90, "upstream", 20)
    assert random["success"]["standard_error"] == pytest.approx(0.009, abs=0.002)
    assert random["success"]["mean"] == pytest.approx(0.522, abs=0.03)
    assert random["strict_success"]["mean"] == pytest.approx(0.51, abs=0.03)
    assert random == evaluate_scripted("babyai", "random", plays=23)
    assert evaluate_scripted("babyai", "oracle")["success"]["mean"] == 1
    nothing = evaluate_scripted("babyai", "null")
    assert nothing["success"]["mean"] == nothing["score"]["mean"] == 0
    same = evaluate_scripted("babyai", "constant", action="move forward")
    assert same["policy"] == "constant move forward"
    assert 0 < same["success"]["mean"] < 0.3
    for result in (random, nothing, same):
        assert as_table(result).row_count == 10, "all, null, random and optimal play, and the categories"
        assert (result["null"]["mean"], result["optimal"]["mean"], result["optimal_is"]) == (0, 1, "scripted")
        assert (result["baseline_turns"]["null"], result["mean_tokens"]) == (20, 0)
    assert same["random"]["mean"] == pytest.approx(random["success"]["mean"], abs=0.03)
    assert same["gap_closed"] == pytest.approx(
        (same["success"]["mean"] - same["random"]["mean"]) / (1 - same["random"]["mean"])
    )
