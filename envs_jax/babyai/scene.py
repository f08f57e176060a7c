"""What BabyAI looks like: the whole grid of a level, with what the agent does not see marked."""

from typing import Any

import numpy as np
from jaxtyping import Bool

from envs_jax.babyai.codes import DIRECTIONS, LOCKED_DOOR, NAMES, OBJECT, UNSEEN, WALL, form_of
from envs_jax.babyai.env import BabyAI, BabyAIParams
from envs_jax.babyai.levels import extent
from envs_jax.babyai.text import goal_text
from envs_jax.babyai.view import MIDDLE, SIZE
from envs_jax.scenes import Scene, grid_scene

_FACING = ("right", "down", "left", "up")


def scene(env: BabyAI, state: Any, params: BabyAIParams) -> Scene:
    """Returns the scene of one state, see `envs_jax.scenes`."""
    world = state.world
    rows, columns = extent(world.cells)
    seen = seen_cells(state, rows, columns)
    cells = [[_sprites(cell) for cell in row] for row in np.asarray(world.cells)[:rows, :columns].tolist()]
    cells[int(world.y)][int(world.x)].append(f"player facing {_FACING[int(world.heading)]}")
    for row, column in np.argwhere(~seen):
        cells[row][column].append("unseen")
    carried = int(world.carrying)
    text = [
        goal_text(state.mission, state.progress, env.shape.clauses),
        f"Carrying: {NAMES[int(world.slot_cells[carried]) - OBJECT] if carried >= 0 else 'nothing'}.",
        f"Primitive actions: {int(world.steps)} of {int(state.max_steps)}.",
    ]
    return grid_scene(cells, text)


def seen_cells(state: Any, rows: int, columns: int) -> Bool[np.ndarray, "rows columns"]:
    """Returns which cells of a level are in the agent's view; `state` is on the host."""
    world = state.world
    row, column = np.nonzero(state.view != UNSEEN)
    forward, right = DIRECTIONS[world.heading], DIRECTIONS[(world.heading + 1) % 4]
    ahead, aside = SIZE - 1 - row, column - MIDDLE
    x, y = (start + ahead * forward[i] + aside * right[i] for i, start in enumerate((world.x, world.y)))
    inside = (x >= 0) & (x < columns) & (y >= 0) & (y < rows)
    seen = np.zeros((rows, columns), bool)
    seen[y[inside], x[inside]] = True
    return seen


def _sprites(cell: int) -> list[str]:
    if cell == WALL:
        return ["wall"]
    found = ["floor"]
    if cell >= OBJECT:
        found.append(NAMES[cell - OBJECT])
        if form_of(cell) == LOCKED_DOOR:
            found.append("lock")
    return found
