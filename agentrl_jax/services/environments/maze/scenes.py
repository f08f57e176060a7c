"""The maze of LMRL-Gym: walls, goal, the agent, and where it has been."""

import re

from agentrl_jax.services.environments.maze.env import MOVES, ROWS, Cell
from agentrl_jax.services.scenes.reading import last_match, lines
from envs_jax.scenes import Scene, grid_scene

_PLACES = re.compile(
    r"The goal is at position ([0-9]{1,3}), ([0-9]{1,3})\. Your current position is at position ([0-9]{1,3}), "
    r"([0-9]{1,3})\."
)
_WON = "Success"


class Reader:
    """Follows the positions that the texts give; there is no scene before one that the maze has."""

    def __init__(self) -> None:
        self._goal: Cell | None = None
        self._trail: list[Cell] = []

    def read(self, action: str, text: str) -> Scene | None:
        """As `TextReader.read`."""
        places = last_match(_PLACES, text)  # the last ones, because an instruction may have an example
        if places:
            goal_row, goal_column, row, column = map(int, places.groups())
            goal, own = (goal_row, goal_column), (row, column)
            if not _is_free(goal) or not _is_free(own):
                return None
            if goal != self._goal or (self._trail and _distance(self._trail[-1], own) > 1):
                self._trail = []  # what was read before is the example of an instruction
            self._goal = goal
            self._trail.append(own)
        elif self._goal and text.strip() == _WON and action in MOVES:
            self._trail.append(self._goal)
        if self._goal is None:
            return None
        cells = [[["wall"] if cell == "1" else ["floor"] for cell in row] for row in ROWS]
        cells[self._goal[0]][self._goal[1]].append("goal")
        for row, column in set(self._trail) - {self._trail[-1]}:
            cells[row][column].append("trail")
        cells[self._trail[-1][0]][self._trail[-1][1]].append("player")
        return grid_scene(cells, lines(text) if len(self._trail) > 1 else ())


def _is_free(cell: Cell) -> bool:
    return cell[0] < len(ROWS) and cell[1] < len(ROWS[0]) and ROWS[cell[0]][cell[1]] == "0"


def _distance(one: Cell, other: Cell) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])
