"""Turns of random, null and optimal play within a budget: against enumeration, and against episodes that are played."""

import itertools

import numpy as np
import pytest

from agentrl_jax.evaluate import panels, scripted_recording
from agentrl_jax.evaluate.baselines import concatenate, level_baselines, mean_turns, select, within
from agentrl_jax.evaluate.panels import Panel, panel_levels
from envs_jax import registry
from envs_jax.budget import Budget
from envs_jax.frozen_lake import oracle as lakes
from envs_jax.sokoban import oracle as boards

PANELS = [
    Panel("boxes", "SimpleSokoban", {}, 8, "", "", levels=24, seed=3),
    Panel("lakes", "FrozenLake", {}, 8, "", "", levels=24, seed=3),
    Panel("dry", "FrozenLake", {"success_rate": 1.0}, 8, "", "", levels=24, seed=3),
    Panel("arms", "Bandit", {}, 1, "", "", levels=24, seed=3),
]


def known(panel, budget):
    levels = panel_levels(panel)
    return level_baselines(panel.env, *panels.environment(panel), levels, budget), levels


def end_of(solved, level, actions):
    """How many of the actions an episode carries out."""
    return next((n for n in range(1, len(actions) + 1) if solved(level, actions[:n])), len(actions))


def pushed(level, actions):
    graph, position = boards.explore(level), 0
    for action in actions:
        position = graph.next[position, action]
    return graph.solved[position]


def walked(level, actions):
    cell = int(np.argmax(level.reshape(-1) == lakes.START))
    for action in actions:
        cell = lakes.neighbors(*level.shape)[cell, action]
    return level.reshape(-1)[cell] in (lakes.GOAL, lakes.HOLE)


@pytest.mark.parametrize(("panel", "over"), [(PANELS[0], pushed), (PANELS[2], walked)])
@pytest.mark.parametrize("budget", [Budget(5, 9, 1), Budget(5, 3, 2), Budget(9, 2, 2)])
def test_random_turns_equal_enumeration(panel, over, budget):
    found, levels = known(panel, budget)
    for level, turns in list(zip(levels, found.turns["random"]))[:4]:
        plays = itertools.product(range(4), repeat=budget.reachable)
        used = [end_of(over, level, play) for play in plays]
        assert turns == pytest.approx(np.mean(np.ceil(np.array(used) / budget.actions_per_turn)))


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.name)
def test_turns_are_those_of_played_episodes(panel):
    """Null and optimal play exactly; random play on average, of eight episodes on each level."""
    found, levels = known(panel, Budget.one_per_turn(panel.max_actions))
    turns = mean_turns(found)

    def played(policy, seed=0):
        return scripted_recording.play_levels(None, policy, panel, seed, lambda line: None)

    assert turns["null"] == played("null") == panel.max_actions
    assert ("optimal" in turns) == (panel.name != "lakes"), "with slips, optimal policies differ in their turns"
    if "optimal" in turns:
        assert turns["optimal"] == played("oracle")
    mean = np.mean([played("random", seed) for seed in range(8)])
    assert abs(turns["random"] - mean) < 5 * panel.max_actions / 2 / np.sqrt(8 * len(levels))


def test_optimal_turns_of_several_actions():
    """A plan of seven actions takes three turns of three; where there is none, all turns are used."""
    budget = Budget(10, 4, 3)
    np.testing.assert_array_equal(budget.turns_of(np.array([7, 3, 0, -1, 10])), [3, 1, 1, 4, 4])
    found, levels = known(PANELS[0], budget)
    lengths = np.array([len(boards.solve(level)) for level in levels])
    np.testing.assert_array_equal(found.turns["optimal"], np.where(lengths <= 10, np.ceil(lengths / 3), 4))
    assert (found.turns["null"] == 4).all()


def test_turns_of_babyai_end_with_the_plan():
    env, params = registry.make("BabyAI-GoToObjS6")
    levels = registry.sample_levels(env, params, panels.level_keys(3, np.arange(3)))
    found = level_baselines("BabyAI-GoToObjS6", env, params, levels, Budget(8, 4, 2))
    assert found.optimal.all()
    assert ((found.turns["optimal"] >= 1) & (found.turns["optimal"] < 4)).all()
    assert (found.turns["optimal"] <= found.turns["random"]).all()


def test_parts_of_levels_keep_their_turns():
    found, levels = known(PANELS[1], Budget(8, 4, 2))
    other, _ = known(PANELS[2], Budget(8, 4, 2))
    few = np.arange(len(levels)) < 5
    assert mean_turns(select(found, few))["random"] == found.turns["random"][:5].mean()
    both = concatenate([found, other])
    assert both.turns.keys() == {"random", "null"}, "only what all parts have"
    assert mean_turns(both)["null"] == 4
    assert mean_turns(within(found, 3)) == {}
