"""Turns of random, null and optimal play within a budget: against enumeration, and against episodes that are played."""

import functools
import itertools

import numpy as np
import pytest

from agentrl_jax.evaluate import panels
from agentrl_jax.evaluate.baselines import concatenate, level_baselines, mean_turns, select, within
from agentrl_jax.evaluate.scripted_recording import PanelPlays
from envs_jax.budget import Budget
from envs_jax.frozen_lake import oracle as lakes
from envs_jax.sokoban import oracle as boards
from envs_jax.sokoban.levels import parse_xsb

OPEN, LONG = "######\n{}\n{}\n#    #\n#    #\n######\n", "######\n#@   #\n#### #\n#    #\n{}\n######\n"
BOXES = [OPEN.format("#@$. #", "#    #"), OPEN.format("#@   #", "#.$  #"), LONG.format("# $. #"), LONG.format("# $ .#")]
"""Their plans have 1, 4, 10 and 11 actions."""
PANELS = [
    panels.Panel("boxes", "SimpleSokoban", {}, 6, "", "", levels=4),
    panels.Panel("lakes", "FrozenLake", {}, 6, "", "", levels=24, seed=3),
    panels.Panel("dry", "FrozenLake", {"success_rate": 1.0}, 6, "", "", levels=24, seed=3),
]


@functools.cache
def levels_of(number):
    return panels.panel_levels(PANELS[number]) if number else np.stack(parse_xsb("\n".join(BOXES)))


def known(number, budget):
    panel = PANELS[number]
    return level_baselines(panel.env, *panels.environment(panel), levels_of(number), budget), levels_of(number)


def pushed(level):
    """Next states of a level, where an episode ends, where it is solved, and the first state."""
    graph = boards.explore(level)
    return graph.next, graph.solved, graph.solved, 0


def walked(level):
    cells = level.reshape(-1)
    ends, start = np.isin(cells, (lakes.GOAL, lakes.HOLE)), int(np.argmax(cells == lakes.START))
    return lakes.neighbors(*level.shape), ends, cells == lakes.GOAL, start


@pytest.mark.parametrize(("number", "graph"), [(0, pushed), (2, walked)])
@pytest.mark.parametrize("budget", [Budget(5, 9, 1), Budget(5, 3, 2), Budget(9, 2, 2)])
def test_turns_equal_enumeration(number, graph, budget):
    found, levels = known(number, budget)
    plays = np.array(list(itertools.product(range(4), repeat=budget.reachable)))
    for row, level in enumerate(levels[:4]):
        following, ends, solved, start = graph(level)
        position, count = np.full(len(plays), start), np.zeros(len(plays), int)
        for actions in plays.T:
            count += ~ends[position]
            position = np.where(ends[position], position, following[position, actions])
        turns = np.ceil(count / budget.actions_per_turn)
        assert found.turns["random"][row] == pytest.approx(turns.mean())
        assert found.turns["optimal"][row] == min(turns[solved[position]], default=turns.max())


@pytest.mark.nightly
def test_turns_are_those_of_played_episodes():
    panel = PANELS[1]
    found, levels = known(1, Budget.one_per_turn(panel.max_actions))
    turns, played = mean_turns(found), PanelPlays(panel)
    assert turns["null"] == panel.max_actions
    assert "optimal" not in turns, "with slips, optimal policies differ in their turns"
    mean = np.mean([played.play("random", seed).num_turns.mean() for seed in range(8)])
    assert abs(turns["random"] - mean) < 5 * panel.max_actions / 2 / np.sqrt(8 * len(levels))
    # A plan of seven actions takes three turns of three; where there is none, all turns are used.
    budget = Budget(10, 4, 3)
    np.testing.assert_array_equal(budget.turns_of(np.array([7, 3, 0, -1, 10])), [3, 1, 1, 4, 4])
    found, levels = known(0, budget)
    assert [len(boards.solve(level)) for level in levels] == [1, 4, 10, 11]
    assert found.turns["optimal"].tolist() == [1, 2, 4, 4]
    assert (found.turns["null"] == 4).all()


def test_parts_of_levels_keep_their_turns():
    found, levels = known(1, Budget(8, 4, 2))
    other, _ = known(2, Budget(8, 4, 2))
    few = np.arange(len(levels)) < 5
    assert mean_turns(select(found, few))["random"] == found.turns["random"][:5].mean()
    both = concatenate([found, other])
    assert both.turns.keys() == {"random", "null"}, "only what all parts have"
    assert mean_turns(both)["null"] == 4
    assert mean_turns(within(found, 3)) == {}
