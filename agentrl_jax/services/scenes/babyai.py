"""BabyAI: what the agent sees in front of it, which is what an observation names."""

import re

from agentrl_jax.services.scenes import Seen
from agentrl_jax.services.scenes.reading import first_match, last_answer, listed
from envs_jax.babyai.codes import NAMES
from envs_jax.babyai.view import MIDDLE, SIZE
from envs_jax.scenes import Scene, grid_scene

_GOAL = re.compile(r"Your goal: ([^\n]+)")
_VIEW = re.compile(r"In front of you in this room, you can see several objects:|You cannot see any objects")
_OBJECT = re.compile(
    rf"There is a ({'|'.join(NAMES)}) [0-9]+ "
    r"(?:right in front of you ([0-9]) steps away|([0-9]) steps in front of you and ([0-9]) steps to your (left|right))"
)
_FACING = re.compile(r"You are facing a wall ([0-9]) steps away")
_CARRIED = re.compile(r"You are carrying a ([a-z ]+?)(?: [0-9]+)?\.")


def babyai(seen: Seen) -> Scene | None:
    """The scene, in which the agent stands at the bottom and looks up; None if no observation has been read.

    Places that the text does not name are empty, whether they are seen or not.
    """
    views = [text for text in seen.texts if _VIEW.search(text)]
    if not views:
        return None
    view = views[-1]
    cells: list[list[list[str]]] = [[[] for _ in range(SIZE)] for _ in range(SIZE)]
    if wall := _FACING.search(view):
        _put(cells, int(wall[1]), 0, "wall")
    for name, straight, front, side, where in _OBJECT.findall(view):
        _put(cells, int(straight or front), int(side or 0) * (1 if where == "right" else -1), name)
    cells[SIZE - 1][MIDDLE].append("player facing up")
    goal = first_match(_GOAL, seen.texts)
    carried = _CARRIED.search(view)
    lists = [
        *listed("Goal", [(goal[1], "")] if goal else []),
        *listed("Inventory", [(carried[1], "")] if carried else [], "nothing"),
    ]
    return grid_scene(cells, last_answer(seen.texts) if view is not seen.texts[-1] else (), lists)


def _put(cells: list[list[list[str]]], front: int, side: int, name: str) -> None:
    row, column = SIZE - 1 - front, MIDDLE + side
    if 0 <= row < SIZE and 0 <= column < SIZE:
        cells[row][column].append(name)
