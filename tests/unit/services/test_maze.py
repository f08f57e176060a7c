import json
import re

import numpy as np
import pytest

from agentrl_jax.errors import BadValue
from agentrl_jax.services.environment import ItemError
from agentrl_jax.services.environments.maze import env as module
from agentrl_jax.services.environments.maze.env import GOAL, LIMIT, MOVES, SERVICE, STARTS, Oracle, describe, distances

HERE = "The goal is at position 8, 6. Your current position is at position "
MAZE = np.array([[int(cell) for cell in row] for row in module.ROWS])
FREE = [tuple(cell) for cell in np.argwhere(MAZE == 0).tolist()]


def begin(item):
    maze = SERVICE.make(False)
    return maze, maze.reset(item)


def position(observation):
    return tuple(int(number) for number in re.search(r"position is at position (\d+), (\d+)\.", observation).groups())


def told(answer):
    return answer.observation, answer.reward, answer.score, answer.done


def test_walls_are_told_in_a_fixed_order(monkeypatch):
    walls = {
        (5, 6): "There is a wall above you.",
        (1, 1): "There are walls to your left, above you, below you.",
        (1, 5): "There are walls to your right, above you, below you.",
        (4, 3): "There are walls to your right, to your left.",
    }
    for (row, column), text in walls.items():
        assert describe((row, column)) == f"{HERE}{row}, {column}. {text}"
    monkeypatch.setattr(module, "ROWS", ("000", "000", "000"))
    assert describe((1, 1)) == HERE + "1, 1. There are no walls near you."


def test_starts_are_the_free_cells_but_the_goal_and_the_oracle_takes_a_shortest_way_by_what_it_reads():
    assert MAZE.shape == (10, 13)
    assert len(STARTS) == len(set(STARTS)) == SERVICE.items == 25
    assert {*STARTS, GOAL} == set(FREE)
    known = {4: (1, 5), 5: (1, 7), 12: (4, 3), 17: (6, 6), 18: (7, 6), 24: (2, 9)}
    assert {item: STARTS[item] for item in known} == known
    known = {GOAL: 0, (7, 6): 1, (5, 3): 6, (1, 3): 10, **dict.fromkeys(((1, 1), (1, 5), (1, 7), (1, 11)), 12)}
    assert (known.items() <= distances().items(), set(distances())) == (True, set(FREE))
    for item, start in enumerate(STARTS):
        (maze, answer), oracle, rewards = begin(item), SERVICE.oracle(item), []
        assert position(answer.observation) == start
        while not answer.done:
            answer = maze.step(oracle.act(answer.observation))
            rewards.append(answer.reward)
        assert rewards == [0.0] * (distances()[start] - 1) + [1.0]
    oracle = Oracle()
    assert oracle.act(f"{SERVICE.instruction}\n{describe((7, 6))}") == "move down"
    for text in ("", "Success\n", "Your current position is at position 0, 0."):
        with pytest.raises(BadValue) as refused:
            oracle.act(text)
        assert (refused.value.key, refused.value.value) == ("observation", text)


def test_the_50th_move_still_counts_and_no_other():
    maze, _ = begin(18)
    for _ in range(LIMIT - 1):
        maze.step("")
    assert LIMIT == 50
    assert SERVICE.solved(maze.step("move down"))
    maze.reset(18)
    answers = [maze.step("down") for _ in range(LIMIT + 1)]
    here = f"{HERE}7, 6. There are walls to your right, to your left."
    assert {told(answer) for answer in answers[:-1]} == {told(begin(18)[1])} == {(here, 0.0, 0.0, False)}
    assert told(answers[-1]) == ("Failure\n", -1.0, -1.0, True)
    assert not SERVICE.solved(answers[-1])


def test_other_items_are_refused_and_leave_the_episode_alone():
    maze, answer = begin(18)
    for item in (25, -1, 2**70):
        with pytest.raises(ItemError, match=f"^The game {item} is not valid"):
            maze.reset(item)
    assert maze.detail()["observation"] == answer.observation
    assert SERVICE.solved(maze.step("move down"))
    upstream = SERVICE.make(True)
    for item, text in ((25, ""), (26, "The game 26 is not valid.")):
        with pytest.raises(ItemError, match=f"^{text}$"):
            upstream.reset(item)
    assert position(upstream.reset(24).observation) == (2, 9)


def test_views_tell_moves_and_detail_but_no_position():
    maze, begun = SERVICE.make(False), {"done": False, "reward": 0.0, "deleted": False}
    assert (SERVICE.views, SERVICE.facts) == (("detail",), {"available_actions": [*MOVES]})
    assert maze.detail() == begun
    maze.reset(18), maze.step("move down")
    ended = {"maze_name": "double_t_maze", "observation": "Success\n", "done": True, "reward": 1.0, "deleted": False}
    assert json.loads(json.dumps(maze.detail())) == ended
    maze.reset(0)
    assert begun.items() <= maze.detail().items()


def test_every_move_from_every_cell_obeys_the_walls():
    for item, start in enumerate(STARTS):
        for action in (*MOVES, "", "Move down", "move down ", "move up\n", "\ud800", "up" * 10_000):
            answer = begin(item)[0].step(action)
            target = tuple(np.add(start, MOVES.get(action, (0, 0))).tolist())
            if target == GOAL:
                assert told(answer) == ("Success\n", 1.0, 1.0, True)
            else:
                assert position(answer.observation) == (target if MAZE[target] == 0 else start)
                assert (answer.reward, answer.done) == (0.0, False)
