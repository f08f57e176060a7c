"""BabyAI: oracles on generated and hard levels, levels that nobody can solve, and the rules of its panel."""

import dataclasses

import pytest
from babyai_play import LOST_ACTION, LOST_ITEM, SERVICE, play

from agentrl_jax.evaluate import panels, scripted
from agentrl_jax.evaluate.api_models import on_panel
from agentrl_jax.evaluate.api_models.service_task import service_task
from agentrl_jax.evaluate.api_models.tasks import TaskOptions
from agentrl_jax.services.environments.babyai import env as babyai
from envs_jax.babyai import items, plans


@pytest.mark.parametrize("item", [2006, 33, 186])
def test_the_oracle_of_each_mode_solves_an_item_in_it(item):
    """Item 2006 is generated, and another level by AgentGym's rules; a full search gives the others up."""
    assert item not in plans.stored()
    for upstream, oracle in ((False, SERVICE.oracle), (True, SERVICE.upstream_oracle)):
        actions = oracle(item).actions
        assert 0 < len(actions) <= plans.ROUNDS
        assert SERVICE.solved(play(item, actions, upstream=upstream)[-1])
    assert SERVICE.play_many("oracle", "", (item,), plans.ROUNDS, 1, 0).solved.all()


def test_the_oracle_opens_what_only_the_default_makes_possible():
    """No listed action of AgentGym's opens the box with the key (level 26); two doors in a strict order (level 16)."""
    for item in (25, 15):
        assert SERVICE.solved(play(item, SERVICE.oracle(item).actions, upstream=False)[-1])
    assert not SERVICE.upstream_oracle(25).actions


@pytest.mark.parametrize("item", items.UNSOLVABLE)
def test_stored_levels_that_nobody_can_solve_are_replaced_by_default(item):
    there, here = (babyai.level_of(item, upstream=upstream) for upstream in (True, False))
    assert (there == items.load((item,))[0]).all()
    assert (here != there).any()
    assert here[items.SHAPE.height, 0] == there[items.SHAPE.height, 0] == items.number_of(item)
    assert (here == babyai.level_of(item, upstream=False)).all()
    assert SERVICE.solved(play(item, SERVICE.oracle(item).actions, upstream=False)[-1])
    assert item not in items.panel()


def test_an_api_model_has_the_rules_of_the_panel():
    options = on_panel.on_panel(TaskOptions(env=""), panels.get_panel("babyai-agentgym-v1"))
    assert (options.env, options.upstream) == ("babyai", True)
    solved = {}
    for upstream in (True, False):
        with service_task(TaskOptions(env="babyai", items=str(LOST_ITEM), upstream=upstream)) as task:
            assert ("compat" in task.facts) == upstream
            episode = task.open(LOST_ITEM, 0)
            episode.start()
            episode.step(f"Action: {LOST_ACTION}")
            solved[upstream] = episode.outcome().solved
            episode.close()
    assert solved == {True: False, False: True}


def test_the_panel_has_agentgyms_rules_and_baselines(monkeypatch):
    monkeypatch.setattr(scripted, "get_service", lambda name: dataclasses.replace(SERVICE, random_plays=2))
    found = scripted.evaluate_scripted("babyai", "null")
    assert (found["panel_digest"], found["items"], found["compat"]) == (items.PANEL_DIGEST, 90, "upstream")
    assert (found["turns"], found["baseline_turns"]["null"], found["mean_tokens"]) == (20, 20, 0)
    assert found["success"]["mean"] == found["score"]["mean"] == found["null"]["mean"] == 0
    assert (found["optimal"]["mean"], found["optimal_is"]) == (1, "scripted")
    assert 0.3 < found["random"]["mean"] < 0.7
    sizes = {name: row["success"]["n"] for name, row in found["categories"].items()}
    assert sizes == {"GoTo": 55, "Pickup": 15, "ActionObjDoor": 5, "FindObj": 5, "OneRoom": 5, "SynthLoc": 5}
