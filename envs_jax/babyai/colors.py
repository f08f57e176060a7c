"""Other colors for a level: nothing but the names of things depends on them, so that a plan stays one.

Doors and their keys change together, and so do the words of the mission. Shapes: `N` levels, `L` actions of a plan.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Int, Int8, Int32

from envs_jax.babyai import macros
from envs_jax.babyai.codes import ANY, COLORS, HIDING, LAST_CELL, OBJECT
from envs_jax.babyai.env import BabyAI, PrimitiveBabyAI
from envs_jax.babyai.levels import Shape, colors_of_clauses


def permute(
    env: BabyAI, levels: Int8[np.ndarray, "N H W"], plans: Sequence[Int32[np.ndarray, " L"]], key: jax.Array
) -> tuple[Int8[np.ndarray, "N H W"], list[Int32[np.ndarray, " L"]]]:
    """Returns each level with its colors permuted at random, and its plan in the names of these colors."""
    colors = permutations(len(levels), key)
    found = np.stack([_level(level, of_level, env.shape) for level, of_level in zip(levels, colors)])
    if isinstance(env, PrimitiveBabyAI):
        return found, list(plans)
    return found, [actions(plan, of_level) for plan, of_level in zip(plans, colors)]


def permutations(number: int, key: jax.Array) -> Int[np.ndarray, "N 6"]:
    """Returns random permutations of the colors: color c becomes `[:, c]`."""
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
    return rng.permuted(np.tile(np.arange(COLORS), (number, 1)), axis=1)


def actions(ids: Int32[np.ndarray, " L"], colors: Int[np.ndarray, "6"]) -> Int32[np.ndarray, " L"]:
    """Returns action ids in which color c is called `colors[c]`; other ids, and negative ones, stay."""
    start = np.array(macros.STARTS)[np.searchsorted(macros.STARTS, ids, side="right") - 1]
    form, color = np.divmod((ids - start) // macros.NUMBERS, COLORS)
    named = start + (form * COLORS + colors[color]) * macros.NUMBERS + (ids - start) % macros.NUMBERS
    return np.where(ids >= macros.STARTS[0], named, ids).astype(np.int32)


def _level(level: Int8[np.ndarray, "H W"], colors: Int[np.ndarray, "6"], shape: Shape) -> Int8[np.ndarray, "H W"]:
    grid, header = level[: shape.height], level[shape.height :].reshape(-1).copy()
    named = colors_of_clauses(shape)
    header[named] = np.append(colors, ANY)[header[named]]  # ANY, the last index, stays
    return np.concatenate([_cells(colors)[grid], header.reshape(-1, shape.width)]).astype(np.int8)


def _cells(colors: Int[np.ndarray, "6"]) -> Int[np.ndarray, " C"]:
    """The code of each cell in other colors."""
    cells = np.arange(LAST_CELL + 1)
    form, color = np.divmod(cells - OBJECT, COLORS)
    box, content = np.divmod(cells - HIDING, COLORS)
    hiding = HIDING + colors[box % COLORS] * COLORS + colors[content]
    return np.select([cells >= HIDING, cells >= OBJECT], [hiding, OBJECT + form * COLORS + colors[color]], cells)
