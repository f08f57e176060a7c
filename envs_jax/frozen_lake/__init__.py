"""FrozenLake: environment, level generator, level files and exact baselines."""

from collections.abc import Callable
from functools import partial

import jax.numpy as jnp

from envs_jax.errors import BadValue
from envs_jax.frozen_lake.env import FrozenLake, FrozenLakeParams, FrozenLakeState, cell_of_player

__all__ = ["TAGS", "FrozenLake", "FrozenLakeParams", "FrozenLakeState", "cell_of_player", "make_frozen_lake"]


def make_frozen_lake(
    height: int = 4,
    width: int = 4,
    observation: str = "grid",
    frozen_probability: float = 0.8,
    success_rate: float = 1 / 3,
) -> tuple[FrozenLake, FrozenLakeParams]:
    """Makes a FrozenLake whose levels are generated on the device; a `ValueError` if an option is out of range.

    For the observations see `grid.FORMATS`, for the probabilities `FrozenLakeParams`.
    """
    for name, value in (("frozen_probability", frozen_probability), ("success_rate", success_rate)):
        if not 0 <= value <= 1:
            raise BadValue(f"{name} is {value!r}; expected a probability, from 0 to 1", name, value)
    env = FrozenLake(height, width, observation)
    params = env.default_params.replace(
        frozen_probability=jnp.float32(frozen_probability), success_rate=jnp.float32(success_rate)
    )
    return env, params


TAGS: dict[str, Callable[..., tuple[FrozenLake, FrozenLakeParams]]] = {
    "FrozenLake": make_frozen_lake,
    "FrozenLake-v2": partial(make_frozen_lake, frozen_probability=0.9, success_rate=0.8),
    "FrozenLake-deterministic": partial(make_frozen_lake, success_rate=1.0),
    "CoordFrozenLake": partial(make_frozen_lake, observation="grid_coord"),
}
"""FrozenLake of RAGEN's first version, of its second version, without slip, and with coordinates before the grid."""
