"""Shared code of environments on a board: levels that are boards, and the text of a board.

Shapes: `H`, `W` rows and columns of the board, `P` pieces of an observation.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from gymnax.environments import spaces

from envs_jax.environment import NO_PIECE, TextEnvironment, hash_integers
from envs_jax.splits import grid_hash

FORMATS = ("grid", "coord", "grid_coord")
"""Observations: one symbol per cell; lists of (row, column); the lists, a newline and the grid."""

SpellCells = Callable[[int | jax.Array, jax.Array, int], jax.Array]
"""(index of a heading, mask bool[H, W], most cells) -> piece ids i32[1 + most]: the heading and the cells."""


class GridEnvironment(TextEnvironment):
    """A `TextEnvironment` on a board. Its parameters have `levels` i8[N, H, W], a pack.

    Attributes:
        height: H.
        width: W.
        num_codes: codes of a cell, from 0.
    """

    height: int
    width: int
    num_codes: int

    def codes(self, state: Any) -> jax.Array:
        """Returns the board as cell codes, i8[H, W]."""
        raise NotImplementedError

    def generate_level(self, key: jax.Array, params: Any) -> jax.Array:
        """Generates a level, i8[H, W]."""
        raise NotImplementedError

    def observation_space(self, params: Any) -> spaces.Box:
        """Cell codes, i8[H, W]."""
        return spaces.Box(0, self.num_codes - 1, (self.height, self.width), jnp.int8)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[jax.Array, Any]:
        """Starts an episode on the level that `draw_level` returns for this key."""
        return self.reset_to_level(self.draw_level(key, params), params)

    def draw_level(self, key: jax.Array, params: Any) -> jax.Array:
        """Returns the level of a key, i8[H, W]: a row of `params.levels`, or a generated level."""
        if params.levels.shape[0] > 0:
            return params.levels[jax.random.randint(key, (), 0, params.levels.shape[0])]
        return self.generate_level(key, params)

    def checked(self, level: jax.Array) -> jax.Array:
        """Returns the given level after checking its size.

        Raises:
            ValueError: it has another size than the board.
        """
        level = jnp.asarray(level)
        if level.shape != (self.height, self.width):
            raise ValueError(
                f"a level of shape {level.shape} was given to a {self.height}x{self.width} {type(self).__name__}; "
                f"expected ({self.height}, {self.width}): make an environment of the level's size"
            )
        return level

    def state_hash(self, state: Any, params: Any) -> jax.Array:
        """Returns u32[2], a hash of the board, independent of the observation format."""
        return hash_integers(self.codes(state))

    def level_hash(self, state: Any, params: Any) -> jax.Array:
        """Returns u32[2], a hash of the board, equal for its rotations and mirror images."""
        return grid_hash(self.codes(state))

    def get_obs(self, state: Any, params: Any = None, key: Any = None) -> jax.Array:
        """Returns the board as cell codes, i8[H, W]."""
        return self.codes(state)


def check_format(observation: str) -> None:
    """Raises a `ValueError` if an observation format is not in `FORMATS`."""
    if observation not in FORMATS:
        raise ValueError(f"observation is {observation!r}; expected one of {', '.join(FORMATS)}")


def spell_grid(codes: jax.Array, newline: int) -> jax.Array:
    """Piece ids of the cells of a board [H, W] in reading order, with the piece `newline` between rows."""
    ends = jnp.full((codes.shape[0], 1), newline, jnp.int32)
    return jnp.concatenate([codes.astype(jnp.int32), ends], axis=1).reshape(-1)[:-1]


def cell_lists(first: int, headings: Sequence[str], height: int, width: int) -> tuple[list[str], SpellCells]:
    """Returns pieces for lists of cells, and the function that writes such a list; an empty list is "none".

    Args:
        first: number of pieces before these.
        headings: headings of the lists.
        height: H.
        width: W.
    """
    none = first + len(headings)
    pieces = [*headings, " none", *(f" ({row},{column})" for row in range(height) for column in range(width))]

    def spell(heading: int | jax.Array, mask: jax.Array, most: int) -> jax.Array:
        index = jnp.nonzero(mask.reshape(-1), size=most, fill_value=-1)[0]
        spelled = jnp.where(index >= 0, none + 1 + index, NO_PIECE)
        spelled = spelled.at[0].set(jnp.where(index[0] >= 0, spelled[0], none))
        return jnp.concatenate([jnp.array([first + heading]), spelled]).astype(jnp.int32)

    return pieces, spell


def packed(ids: jax.Array) -> jax.Array:
    """Returns piece ids i32[P] with the padding (`NO_PIECE`) moved to the end."""
    return ids[jnp.argsort(ids == NO_PIECE, stable=True)]
