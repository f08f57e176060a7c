"""What Sokoban looks like: walls, targets, boxes, and the player."""

from typing import Any

import numpy as np

from envs_jax.scenes import Scene, grid_scene
from envs_jax.sokoban.env import Sokoban, SokobanParams
from envs_jax.sokoban.text import TARGET, WALL


def scene(env: Sokoban, state: Any, params: SokobanParams) -> Scene:
    """Returns the scene of one state, see `envs_jax.scenes`."""
    room, boxes, player = (np.asarray(x) for x in (state.room, state.boxes, state.player))
    targets = room == TARGET

    def sprites(row: int, column: int) -> list[str]:
        place = row, column
        if room[place] == WALL:
            return ["wall"]
        if boxes[place]:
            return ["floor", "box on target" if targets[place] else "box"]
        # A target is drawn over the player, who would hide it.
        shown = (("player", player), ("target", targets))
        return ["floor", *(name for name, cells in shown if cells[place])]

    height, width = room.shape
    cells = [[sprites(row, column) for column in range(width)] for row in range(height)]
    return grid_scene(cells, [f"Boxes on targets: {int((boxes & targets).sum())} of {int(targets.sum())}."])
