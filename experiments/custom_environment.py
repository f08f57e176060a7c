"""A complete new environment, checked by `envs_jax.testing.check_env`: walk to the door at the end of a corridor."""

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces

from envs_jax import EnvParams, EnvState, TextEnvironment

DOOR = 8


@struct.dataclass
class CorridorState(EnvState):
    """`time`, `terminated` (inherited) and the cell of the player, i32[], from 0 to DOOR."""

    place: jax.Array


class Corridor(TextEnvironment):
    """Reward 1 f32[] at the door, which ends the episode; observation i32[], the player's cell."""

    actions = ("Left", "Right")
    pieces = (".", "P", "D", "You are at the door.")
    instruction = "Walk to the door."
    legend = (("P", "you"), ("D", "the door"), (".", "floor"))

    @property
    def default_params(self) -> EnvParams:
        """Twenty steps."""
        return EnvParams(max_steps_in_episode=jnp.int32(20))

    def observation_space(self, params: EnvParams) -> spaces.Discrete:
        """A cell."""
        return spaces.Discrete(DOOR + 1)

    def reset_env(self, key: jax.Array, params: EnvParams):
        """Starts somewhere before the door."""
        place = jax.random.randint(key, (), 0, DOOR)
        return place, CorridorState(time=jnp.int32(0), terminated=jnp.bool_(False), place=place)

    def step_env(self, key: jax.Array, state: CorridorState, action: jax.Array, params: EnvParams):
        """Takes one step; a state that is done does not change."""
        active = ~self.is_done(state, params)
        place = jnp.where(active, jnp.clip(state.place + 2 * action - 1, 0, DOOR), state.place)
        reached = active & (place == DOOR)
        info = {"success": place == DOOR, "action_is_effective": place != state.place}
        state = state.replace(time=state.time + active, terminated=state.terminated | reached, place=place)
        return place, state, reached.astype(jnp.float32), state.terminated, info

    def describe(self, state: CorridorState, params: EnvParams) -> jax.Array:
        """Shows the corridor as a row of cells, or says that the door is reached; padded with -1."""
        cells = jnp.zeros(DOOR + 1, jnp.int32).at[DOOR].set(2).at[state.place].set(1)
        return jnp.where(state.place == DOOR, jnp.full(DOOR + 1, -1).at[0].set(3), cells)

    def success(self, state: CorridorState, params: EnvParams) -> jax.Array:
        """The door has been reached."""
        return state.place == DOOR
