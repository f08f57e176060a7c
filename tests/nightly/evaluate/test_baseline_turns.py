"""Turns of scripted play in environments whose programs take long to compile."""

import numpy as np

from agentrl_jax.evaluate import panels
from agentrl_jax.evaluate.baselines import level_baselines, mean_turns
from agentrl_jax.evaluate.panels import Panel, panel_levels
from agentrl_jax.evaluate.scripted_recording import PanelPlays
from envs_jax import registry
from envs_jax.budget import Budget


def test_turns_of_sokoban_are_those_of_played_episodes():
    panel = Panel("boxes", "SimpleSokoban", {}, 8, "", "", levels=24, seed=3)
    levels = panel_levels(panel)
    turns = mean_turns(level_baselines(panel.env, *panels.environment(panel), levels, Budget.one_per_turn(8)))
    plays = PanelPlays(panel)
    assert turns["optimal"] == np.asarray(plays.play("oracle", 0).num_turns).mean()
    assert turns["null"] == np.asarray(plays.play("null", 0).num_turns).mean() == 8
    mean = np.mean([plays.play("random", seed).num_turns.mean() for seed in range(8)])
    assert abs(turns["random"] - mean) < 5 * 8 / 2 / np.sqrt(8 * len(levels))


def test_turns_of_babyai_end_with_the_plan():
    env, params = registry.make("BabyAI-GoToObjS6")
    levels = registry.sample_levels(env, params, panels.level_keys(3, np.arange(3)))
    found = level_baselines("BabyAI-GoToObjS6", env, params, levels, Budget(8, 4, 2))
    assert found.optimal.all()
    assert ((found.turns["optimal"] >= 1) & (found.turns["optimal"] < 4)).all()
    assert (found.turns["optimal"] <= found.turns["random"]).all()
