"""Lights Out on a board of 3x3, an example of a compiled environment: `agentrl train lights_out` trains on it."""

import jax
import jax.numpy as jnp
from flax import struct

from envs_jax import EnvParams, EnvState, TextEnvironment

SIDE = 3
CELLS = SIDE * SIDE
_ROW, _COLUMN = jnp.divmod(jnp.arange(CELLS), SIDE)
TOGGLES = (jnp.abs(_ROW[:, None] - _ROW) + jnp.abs(_COLUMN[:, None] - _COLUMN)) <= 1
"""bool[cell, cell]: what a press of the first switches."""


@struct.dataclass
class LightsState(EnvState):
    """`time`, `terminated` (inherited) and the lights, bool[9]."""

    lights: jax.Array


class LightsOut(TextEnvironment):
    """Press cells until all lights are off; a press switches a cell and its neighbors. Reward 1 f32[] at the end.

    A level is what up to `presses` presses of the dark board leave.
    """

    actions = tuple("abcdefghi")
    pieces = (".", "#", "\n")
    instruction = "Switch all lights off. The cells are a to i, row by row; a press switches a cell and its neighbors."
    legend = (("#", "on"), (".", "off"))

    def __init__(self, presses: int = 3):
        self.presses = presses

    @property
    def default_params(self) -> EnvParams:
        """Twenty presses."""
        return EnvParams(max_steps_in_episode=jnp.int32(20))

    def reset_env(self, key: jax.Array, params: EnvParams):
        """Draws the presses that made the level, at least one."""
        order, number = jax.random.split(key)
        rank = jnp.argsort(jnp.argsort(jax.random.uniform(order, (CELLS,))))
        pressed = rank < jax.random.randint(number, (), 1, self.presses + 1)
        lights = (pressed @ TOGGLES.astype(jnp.int32)) % 2 == 1
        return lights, LightsState(time=jnp.int32(0), terminated=jnp.bool_(False), lights=lights)

    def step_env(self, key: jax.Array, state: LightsState, action: jax.Array, params: EnvParams):
        """Presses a cell; a state that is done does not change."""
        active = ~self.is_done(state, params)
        lights = jnp.where(active, state.lights ^ TOGGLES[action], state.lights)
        dark = active & ~jnp.any(lights)
        info = {"success": ~jnp.any(lights), "action_is_effective": active}
        state = state.replace(time=state.time + active, terminated=state.terminated | dark, lights=lights)
        return lights, state, dark.astype(jnp.float32), state.terminated, info

    def describe(self, state: LightsState, params: EnvParams) -> jax.Array:
        """The board, row by row."""
        rows = state.lights.astype(jnp.int32).reshape(SIDE, SIDE)
        return jnp.pad(rows, ((0, 0), (0, 1)), constant_values=2).reshape(-1)[:-1]

    def success(self, state: LightsState, params: EnvParams) -> jax.Array:
        """All lights are off."""
        return ~jnp.any(state.lights)
