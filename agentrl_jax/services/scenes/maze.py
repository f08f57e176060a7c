"""The maze of LMRL-Gym: walls, goal, the agent, and where it has been."""

import re
from itertools import pairwise

from agentrl_jax.services.environments.maze import MOVES, ROWS, Cell
from agentrl_jax.services.scenes import Seen
from agentrl_jax.services.scenes.reading import last_answer
from envs_jax.scenes import Scene, grid_scene

_PLACES = re.compile(
    r"The goal is at position ([0-9]{1,3}), ([0-9]{1,3})\. Your current position is at position ([0-9]{1,3}), "
    r"([0-9]{1,3})\."
)
_WON = "Success"


def maze(seen: Seen) -> Scene | None:
    """The scene; None if no position has been read, or one that the maze does not have."""
    places = [_places(text) for text in seen.texts]
    goal = next((found[0] for found in places if found), None)
    own = [found[1] for found in places if found]
    if goal is None or not all(map(_is_free, [goal, *own])):
        return None
    if seen.texts[-1].strip() == _WON and seen.actions[-1] in MOVES:
        own.append(goal)
    cells = [[["wall"] if cell == "1" else ["floor"] for cell in row] for row in ROWS]
    cells[goal[0]][goal[1]].append("goal")
    for row, column in {before for before, after in pairwise(own) if before != own[-1]}:
        cells[row][column].append("trail")
    cells[own[-1][0]][own[-1][1]].append("player")
    return grid_scene(cells, last_answer(seen.texts))


def _places(text: str) -> tuple[Cell, Cell] | None:
    """Goal and own position in a text; the last ones, because an instruction may have an example."""
    found = _PLACES.findall(text)
    if not found:
        return None
    goal_row, goal_column, row, column = map(int, found[-1])
    return (goal_row, goal_column), (row, column)


def _is_free(cell: Cell) -> bool:
    return cell[0] < len(ROWS) and cell[1] < len(ROWS[0]) and ROWS[cell[0]][cell[1]] == "0"
