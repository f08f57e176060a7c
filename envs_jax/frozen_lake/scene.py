"""What FrozenLake looks like: ice, holes, start and goal, and the player."""

from typing import Any

import numpy as np

from envs_jax.frozen_lake.env import FrozenLake, FrozenLakeParams
from envs_jax.frozen_lake.text import GOAL, HOLE, START
from envs_jax.scenes import Scene, grid_scene

_SPRITES = {HOLE: ("ice", "hole"), GOAL: ("ice", "goal"), START: ("ice", "start")}


def scene(env: FrozenLake, state: Any, params: FrozenLakeParams) -> Scene:
    """Returns the scene of one state, see `envs_jax.scenes`."""
    level, player = np.asarray(state.level), np.asarray(state.player)
    cells = [[list(_SPRITES.get(code, ("ice",))) for code in row] for row in level.tolist()]
    row, column = np.argwhere(player)[0]
    here, code = cells[row][column], level[row, column]
    rate = float(params.success_rate)
    text = ["No slip." if rate == 1 else f"A move goes as intended with probability {rate:.2f}."]
    here.append("player")
    if code == HOLE:
        here.append("fallen")
        text.append("The player fell into a hole.")
    elif code == GOAL:
        here.append("arrived")
        text.append("The player reached the goal.")
    return grid_scene(cells, text)
