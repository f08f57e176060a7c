"""A toy environment of commands: `say` is repeated in the next observation, `end` ends the episode."""

import jax
import jax.numpy as jnp
from flax import struct

from envs_jax import EnvParams, EnvState
from envs_jax.token_environment import Command, TokenEnvironment

LETTERS = "abcdefgh"
SHOWN = 4


@struct.dataclass
class EchoState(EnvState):
    said: jax.Array
    action: jax.Array


class Echo(TokenEnvironment):
    """Reward 1 where an episode ends by `end` with an argument of one byte."""

    actions = ("say", "end")
    templates = (("<say>", " a"), ("<end>", "</end>"))
    pieces = (*LETTERS, "?", "none")
    instruction = "Repeat."
    argument_bytes = 6

    @property
    def default_params(self) -> EnvParams:
        return EnvParams(max_steps_in_episode=jnp.int32(5))

    def reset_env(self, key: jax.Array, params: EnvParams):
        said = jnp.zeros(self.argument_bytes, jnp.uint8)
        state = EchoState(time=jnp.int32(0), terminated=jnp.bool_(False), said=said, action=jnp.int32(0))
        return state.time, state

    def step_env(self, key: jax.Array, state: EchoState, command: Command, params: EnvParams):
        active = ~self.is_done(state, params)
        after = EchoState(time=state.time + 1, terminated=command.action == 1, said=command.text, action=command.action)
        state = jax.tree.map(lambda a, b: jnp.where(active, a, b), after, state)
        solved = active & state.terminated & (command.length == 1)
        info = {"success": solved, "action_is_effective": active}
        return state.time, state, solved.astype(jnp.float32), state.terminated, info

    def describe(self, state: EchoState, params: EnvParams) -> jax.Array:
        said = state.said[:SHOWN].astype(jnp.int32)
        letters = jnp.where((said >= ord("a")) & (said <= ord("h")), said - ord("a"), len(LETTERS))
        none = jnp.full(SHOWN, -1).at[0].set(len(LETTERS) + 1)
        return jnp.where(state.action < 0, none, jnp.where(said > 0, letters, -1)).astype(jnp.int32)

    def success(self, state: EchoState, params: EnvParams) -> jax.Array:
        return state.terminated & (state.said[1] == 0) & (state.said[0] > 0)
