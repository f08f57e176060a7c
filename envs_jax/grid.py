"""Shared code of environments on a board: levels that are boards, moves, and the text of a board."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8, Int32, Key, UInt32

from envs_jax.environment import NO_PIECE, TextEnvironment, hash_integers
from envs_jax.errors import BadValue
from envs_jax.gymnax_base import spaces
from envs_jax.splits import grid_hash, grid_images, shifted_images

FORMATS = ("grid", "coord", "grid_coord")
"""Observations: one symbol per cell; lists of (row, column); the lists, a newline and the grid."""

CellList = tuple[int | Int[Array, ""], Bool[Array, "H W"], int]
"""Index of a heading, the cells below it, and the most cells that there can be."""


class GridEnvironment(TextEnvironment):
    """A `TextEnvironment` on a board of `height` times `width` cells, with codes from 0 to `num_codes` - 1.

    Its observation, `get_obs`, is the board as codes. Its parameters have `levels` i8[N, H, W], a pack; if N is 0,
    levels are generated.
    """

    height: int
    width: int
    num_codes: int
    surrounding: int | None = None
    """Code of the cells around a level, if a level means the same wherever it is on the board."""

    def generate_level(self, key: Key[Array, ""], params: Any) -> Int8[Array, "H W"]:
        """Generates a level."""
        raise NotImplementedError

    def observation_space(self, params: Any) -> spaces.Box:
        """Cell codes, i8[H, W]."""
        return spaces.Box(0, self.num_codes - 1, (self.height, self.width), jnp.int8)

    def reset_env(self, key: Key[Array, ""], params: Any) -> tuple[Int8[Array, "H W"], Any]:
        """Starts an episode on the level that `sample_level` returns for this key."""
        return self.reset_to_level(self.sample_level(key, params), params)

    def sample_level(self, key: Key[Array, ""], params: Any) -> Int8[Array, "H W"]:
        """Returns the level of a key: a row of `params.levels`, or a generated level."""
        if params.levels.shape[0] > 0:
            return params.levels[jax.random.randint(key, (), 0, params.levels.shape[0])]
        return self.generate_level(key, params)

    def check_size(self, level: Any) -> Int[Array, "H W"]:
        """Returns a level as an array; raises a `ValueError` if it has another size than the board."""
        level = jnp.asarray(level)
        if level.shape != (self.height, self.width):
            raise BadValue(
                f"a level of shape {level.shape} was given to a {self.height}x{self.width} {type(self).__name__}; "
                f"expected ({self.height}, {self.width}): make an environment of the level's size",
                "level",
                level.shape,
            )
        return level

    def state_hash(self, state: Any, params: Any) -> UInt32[Array, "2"]:
        """Returns a hash of the board, independent of the observation format."""
        return hash_integers(self.get_obs(state))

    def level_hash(self, state: Any, params: Any) -> UInt32[Array, "2"]:
        """Returns a hash of the board, equal for all of its images, see `level_images`."""
        return grid_hash(self.get_obs(state), self.surrounding)

    def level_images(self, level: Int8[np.ndarray, "H W"]) -> list[Int8[np.ndarray, "H W"]]:
        """Returns the board and its rotations and mirror images, and those shifted if there are `surrounding` cells."""
        return grid_images(level) if self.surrounding is None else shifted_images(level, self.surrounding)


def shift(
    mask: Bool[Array, "H W"], action: Int[Array, ""], directions: Sequence[tuple[int, int]]
) -> Bool[Array, "H W"]:
    """Moves the true cells one cell in the direction of an action; those that leave the board are dropped.

    `directions` are the (row, column) steps by action id; any other id gives an empty mask. The whole mask is shifted,
    because shifts fuse into the rest of the step and an indexed update would not.
    """
    height, width = mask.shape
    padded = jnp.pad(mask, 1)
    shifted = jnp.zeros_like(mask)
    for index, (down, right) in enumerate(directions):
        moved = padded[1 - down : 1 - down + height, 1 - right : 1 - right + width]
        shifted |= moved & (action == index)
    return shifted


def neighbors(padded: np.ndarray, directions: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns the neighbors of each cell in each direction, [H W, directions], from a board padded by 1."""
    height, width = padded.shape[0] - 2, padded.shape[1] - 2
    shifted = [padded[1 + down : 1 + down + height, 1 + right : 1 + right + width] for down, right in directions]
    return np.stack(shifted, axis=-1).reshape(height * width, len(directions))


def board_text(
    symbols: Sequence[str], headings: Sequence[str], height: int, width: int, observation: str
) -> tuple[list[str], Callable[[Int[Array, "H W"], Sequence[CellList]], Int32[Array, " P"]]]:
    """Returns the pieces of a board's text, and the function that writes the text of its codes and cell lists.

    "grid" is a symbol per cell with a newline between rows; "coord" has zero-based (row, column) pairs below headings,
    where an empty list is "none"; "grid_coord" is both, with a newline between. The piece ids are padded on the right.
    Another observation raises a `ValueError`.
    """
    if observation not in FORMATS:
        raise BadValue(
            f"observation is {observation!r}; expected one of {', '.join(FORMATS)}", "observation", observation
        )
    newline = len(symbols)
    first_heading = newline + 1
    none = first_heading + len(headings)
    pieces = [*symbols, "\n"]
    if observation != "grid":
        pieces += [*headings, " none", *(f" ({row},{column})" for row in range(height) for column in range(width))]

    def describe_list(heading: int | jax.Array, mask: jax.Array, most: int) -> jax.Array:
        if most == 1:  # a minimum is much faster than `nonzero`, which counts and scatters
            cell = jnp.min(jnp.where(mask.reshape(-1), jnp.arange(mask.size), mask.size), keepdims=True)
            index = jnp.where(cell < mask.size, cell, -1)
        else:
            index = jnp.nonzero(mask.reshape(-1), size=most, fill_value=-1)[0]
        ids = jnp.where(index >= 0, none + 1 + index, NO_PIECE)
        ids = ids.at[0].set(jnp.where(index[0] >= 0, ids[0], none))
        return jnp.concatenate([jnp.array([first_heading + heading]), ids]).astype(jnp.int32)

    def describe(codes: jax.Array, lists: Sequence[CellList]) -> jax.Array:
        grid = jnp.pad(codes.astype(jnp.int32), ((0, 0), (0, 1)), constant_values=newline).reshape(-1)[:-1]
        if observation == "grid":
            return grid
        parts = [describe_list(*entry) for entry in lists]
        if observation == "grid_coord":
            parts += [jnp.array([newline], jnp.int32), grid]
        return _without_gaps(parts)

    return pieces, describe


def _without_gaps(parts: Sequence[Int32[Array, " n"]]) -> Int32[Array, " P"]:
    """Concatenates ids, each part with its padding at its end, and moves all padding to the end.

    Each id is looked up at its place before the move: a sort by `ids == NO_PIECE` takes ten times as long on a CPU.
    """
    ids = jnp.concatenate(parts)
    source, end = jnp.arange(ids.size), 0
    for part in parts:
        end += part.size
        padding = jnp.sum(part == NO_PIECE)
        source += jnp.where(source >= end - padding, padding, 0)
    return ids.at[source].get(mode="fill", fill_value=NO_PIECE)
