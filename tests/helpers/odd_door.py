"""A door that opens after three right actions: environments that keep the contract, and mislead a careless search."""

import enum

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces
from jaxtyping import Array, Int32

from envs_jax import EnvParams, EnvState, TextEnvironment
from envs_jax.environment import hash_integers

NUMBERS, LIMIT = 3, 12


class Kind(enum.IntEnum):
    HIDES = 0  # the text shows the last action alone, not how many were right
    STICKS = 1  # the last number opens the door one time in four
    COUNTS_DOWN = 2  # the text shows the steps left


@struct.dataclass
class DoorState(EnvState):
    code: Int32[Array, ""]
    right: Int32[Array, ""]
    last: Int32[Array, ""]


@struct.dataclass(kw_only=True)
class DoorParams(EnvParams):
    kind: Int32[Array, ""]


class Door(TextEnvironment):
    actions = ("Zero", "One")
    pieces = ("Locked.", "Open.", " You pressed Zero.", " You pressed One.", *(f" {n} left." for n in range(LIMIT + 1)))

    @property
    def default_params(self):
        return DoorParams(max_steps_in_episode=jnp.int32(LIMIT), kind=jnp.int32(Kind.HIDES))

    def observation_space(self, params):
        return spaces.Discrete(2)

    def reset_env(self, key, params):
        zero = jnp.int32(0)
        code = jax.random.randint(key, (), 0, 2**NUMBERS)
        return zero, DoorState(time=zero, terminated=jnp.bool_(False), code=code, right=zero, last=zero - 1)

    def step_env(self, key, state, action, params):
        active = ~self.is_done(state, params)
        right = jnp.where((state.code >> state.right) % 2 == action, state.right + 1, 0)
        sticks = (params.kind == Kind.STICKS) & (right == NUMBERS) & ~jax.random.bernoulli(key, 0.25)
        right = jnp.where(sticks, NUMBERS - 1, right)
        opened = active & (right == NUMBERS)
        after = state.replace(
            time=state.time + 1, terminated=opened, right=right.astype(jnp.int32), last=action.astype(jnp.int32)
        )
        state = jax.tree.map(lambda new, old: jnp.where(active, new, old), after, state)
        success = self.success(state, params)
        info = {"success": success, "action_is_effective": active}
        return success.astype(jnp.int32), state, opened.astype(jnp.float32), state.terminated, info

    def describe(self, state, params):
        pressed = jnp.where(state.last >= 0, 2 + state.last, -1)
        left = jnp.where(params.kind == Kind.COUNTS_DOWN, 4 + params.max_steps_in_episode - state.time, -1)
        return jnp.stack([(state.right == NUMBERS).astype(jnp.int32), pressed, left])

    def success(self, state, params):
        return state.right == NUMBERS


class ConfusedDoor(Door):
    """Says that situations are equal that are not."""

    def state_hash(self, state, params):
        return hash_integers(self.describe(state, params))
