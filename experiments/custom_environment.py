"""A new environment, complete: walk along a corridor to its open door. `envs_jax.testing.check_env` accepts it."""

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces

from envs_jax import EnvParams, EnvState, TextEnvironment

LENGTH = 9


@struct.dataclass
class CorridorState(EnvState):
    """`time`, `terminated` (inherited) and two cells, i32[], from 0 to LENGTH - 1."""

    place: jax.Array
    door: jax.Array


class Corridor(TextEnvironment):
    """Reward 1 f32[] at the door, which ends the episode; observation i32[2], the two cells."""

    actions = ("Left", "Right")
    pieces = (".", "P", "D", "You are at the door.")
    instruction = "Walk to the door."
    legend = (("P", "you"), ("D", "the door"), (".", "floor"))

    @property
    def default_params(self) -> EnvParams:
        """Twenty steps."""
        return EnvParams(max_steps_in_episode=jnp.int32(20))

    def observation_space(self, params: EnvParams) -> spaces.Box:
        """Two cells."""
        return spaces.Box(0, LENGTH - 1, (2,), jnp.int32)

    def reset_env(self, key: jax.Array, params: EnvParams):
        """Starts at one cell with the door at another one."""
        place, door = jax.random.choice(key, LENGTH, (2,), replace=False).astype(jnp.int32)
        state = CorridorState(time=jnp.int32(0), terminated=jnp.bool_(False), place=place, door=door)
        return jnp.stack([place, door]), state

    def step_env(self, key: jax.Array, state: CorridorState, action: jax.Array, params: EnvParams):
        """Takes one step; a state that is done does not change."""
        active = ~self.is_done(state, params)
        place = jnp.clip(state.place + jnp.where(active, 2 * action - 1, 0), 0, LENGTH - 1)
        reached = active & (place == state.door)
        info = {"success": place == state.door, "action_is_effective": place != state.place}
        state = state.replace(time=state.time + active, terminated=state.terminated | reached, place=place)
        return jnp.stack([place, state.door]), state, reached.astype(jnp.float32), state.terminated, info

    def describe(self, state: CorridorState, params: EnvParams) -> jax.Array:
        """Shows the corridor as one row of cells, or one sentence at the door."""
        cells = jnp.zeros(LENGTH, jnp.int32).at[state.door].set(2).at[state.place].set(1)
        return jnp.where(self.success(state, params), jnp.full(LENGTH, -1).at[0].set(3), cells)

    def success(self, state: CorridorState, params: EnvParams) -> jax.Array:
        """The door has been reached."""
        return state.place == state.door
