"""BabyAI: what the agent sees in front of it, which is what an observation names."""

import re

from agentrl_jax.services.scenes.reading import lines, listed
from envs_jax.babyai.codes import NAMES
from envs_jax.babyai.view import MIDDLE, SIZE
from envs_jax.scenes import Scene, grid_scene

_GOAL = re.compile(r"Your goal: ([^\n]+)")
_VIEW = re.compile(r"In front of you in this room, you can see several objects:|You cannot see any objects")
_OBJECT = re.compile(
    rf"There is a ({'|'.join(NAMES)}) [0-9]{{1,3}} "
    r"(?:right in front of you ([0-9]) steps away|([0-9]) steps in front of you and ([0-9]) steps to your (left|right))"
)
_FACING = re.compile(r"You are facing a wall ([0-9]) steps away")
_CARRIED = re.compile(r"You are carrying a ([a-z ]{1,40}?)(?: [0-9]{1,3})?\.")


class Reader:
    """Keeps the last observation, in which the agent stands at the bottom and looks up.

    Places that the text does not name are empty, whether they are seen or not.
    """

    def __init__(self) -> None:
        self._goal = self._view = ""

    def read(self, action: str, text: str) -> Scene | None:
        """As `TextReader.read`."""
        goal = _GOAL.search(text)
        self._goal = self._goal or (goal[1] if goal else "")
        new = _VIEW.search(text) is not None
        self._view = text if new else self._view
        if not self._view:
            return None
        cells: list[list[list[str]]] = [[[] for _ in range(SIZE)] for _ in range(SIZE)]
        if wall := _FACING.search(self._view):
            _put(cells, int(wall[1]), 0, "wall")
        for name, straight, front, side, where in dict.fromkeys(_OBJECT.findall(self._view)):
            _put(cells, int(straight or front), int(side or 0) * (1 if where == "right" else -1), name)
        cells[SIZE - 1][MIDDLE].append("player facing up")
        carried = _CARRIED.search(self._view)
        lists = [
            *listed("Goal", [(self._goal, "")] if self._goal else []),
            *listed("Inventory", [(carried[1], "")] if carried else [], "nothing"),
        ]
        return grid_scene(cells, () if new else lines(text), lists)


def _put(cells: list[list[list[str]]], front: int, side: int, name: str) -> None:
    row, column = SIZE - 1 - front, MIDDLE + side
    if 0 <= row < SIZE and 0 <= column < SIZE:
        cells[row][column].append(name)
