"""`TextEnvironment`: a gymnax environment with text observations and named actions.

Shapes: `P` observation pieces, `H` and `W` rows and columns of a grid.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float32, Int, Int8, Int32, Key, UInt32

from envs_jax.content import content_key
from envs_jax.gymnax_base import environment, spaces

NO_PIECE = -1
"""No piece; anywhere in a row of piece ids."""


@struct.dataclass
class EnvState(environment.EnvState):
    """State shared by every text environment.

    `time` counts the actions so far. `terminated`: the episode ended by the environment's own rule; absorbing.
    """

    time: Int32[Array, ""]
    terminated: Bool[Array, ""]


@struct.dataclass
class EnvParams(environment.EnvParams):
    """Arrays, which can be vmapped; an episode is truncated after `max_steps_in_episode` actions."""

    max_steps_in_episode: Int32[Array, ""]


class TextEnvironment(environment.Environment):
    """A gymnax `Environment` plus names for its actions and text for its states.

    A subclass defines `reset_env`, `step_env`, `describe`, `success` and the class attributes below. The contract,
    which `envs_jax.testing.check_env` verifies:

    * `reset_env(key, params) -> (obs, state)`: the key decides the level and nothing else does.
    * `step_env(key, state, action, params) -> (obs, state, reward f32[], terminated bool[], info)`: pure; the key
      decides the transition noise. A terminated or truncated state is absorbing: it is returned unchanged with
      reward 0. `info` holds `success` and `action_is_effective`, both bool[], and other values worth averaging.
    * `describe(state, params)`: `P` is fixed. The text of a state is `"".join(pieces[i])` over the ids that are not
      `NO_PIECE`. Text about the last action depends only on the state.
    * `state_hash(state, params)`: equal for equal situations, independent of the path that led there.
    * `level_hash(state, params)`: of a state that was just reset, equal for levels that count as the same;
      `envs_jax.splits` divides levels into training, validation and test by this hash.

    Attributes:
        actions: names by action id, as the agent writes them.
        pieces: the finite set of text fragments that `describe` can return.
        piece_limits: most occurrences of each piece in one observation, used to bound the tokens of a prompt; empty
            if there is no limit but `P`.
        piece_groups: (first, end, most) for pieces of which one observation has at most `most` together, those from
            `first` to `end` - 1; for the same bound.
        instruction: the task in words, shown once before the first turn.
        legend: pairs (symbol, meaning), shown after the instruction; empty if there is no grid.
        test_levels: hashes u32[N, 2] of levels that are test levels whatever their hash says, see `envs_jax.splits`.
        lists_actions: prompts list the names of the actions, in the order of their ids. False if observations name
            them, for instance because their order would reveal which one is better.
    """

    actions: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()
    piece_limits: tuple[int, ...] = ()
    piece_groups: tuple[tuple[int, int, int], ...] = ()
    instruction: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    test_levels: UInt32[np.ndarray, "N 2"] = np.zeros((0, 2), np.uint32)
    lists_actions: bool = True

    def __eq__(self, other: object) -> bool:
        """Environments of one class with equal attributes are equal: what was compiled for one serves the other."""
        return self is other or (type(self) is type(other) and content_key(vars(self)) == content_key(vars(other)))

    def __hash__(self) -> int:
        return hash((type(self), content_key(vars(self))))

    def describe(self, state: Any, params: Any) -> Int32[Array, " P"]:
        """Returns the observation as piece ids; `NO_PIECE` is no piece."""
        raise NotImplementedError

    def success(self, state: Any, params: Any) -> Bool[Array, ""]:
        """Returns whether the task is solved."""
        raise NotImplementedError

    def state_hash(self, state: Any, params: Any) -> UInt32[Array, "2"]:
        """Returns a hash of the described situation."""
        return hash_integers(self.describe(state, params))

    def level_hash(self, state: Any, params: Any) -> UInt32[Array, "2"]:
        """Returns a hash of the level of a state that was just reset."""
        return self.state_hash(state, params)

    def level_images(self, level: Int8[np.ndarray, "H W"]) -> list[Int8[np.ndarray, "H W"]]:
        """Returns the levels that have the hash of a given one, itself first: such as rotated or mirrored ones.

        Runs on the host; `NotImplementedError` if they are not known.
        """
        raise NotImplementedError(f"the images of levels of {self.name} are not known")

    def reward_range(self, params: Any) -> tuple[Float32[Array, ""], Float32[Array, ""]]:
        """Returns the lowest and the highest reward of one action; `NotImplementedError` if none is declared."""
        raise NotImplementedError(f"{self.name} declares no range of rewards")

    def reset_to_level(self, level: Int8[Array, "H W"], params: Any) -> tuple[Any, Any]:
        """Returns (obs, state) at the start of a given level; `NotImplementedError` if states are no grids."""
        raise NotImplementedError(f"{self.name} has no levels that can be given; its episodes come from a key")

    def sample_level(self, key: Key[Array, ""], params: Any) -> Int8[Array, "H W"]:
        """Returns the level that `reset_env` starts on with this key; `NotImplementedError` if states are no grids."""
        raise NotImplementedError(f"{self.name} has no levels; its episodes come from a key alone")

    def render(self, state: Any, params: Any) -> str:
        """Returns the text of one (unbatched) state; runs on the host."""
        return "".join(self.pieces[i] for i in np.asarray(self.describe(state, params)).tolist() if i != NO_PIECE)

    @property
    def num_actions(self) -> int:
        """Number of action ids."""
        return len(self.actions)

    @property
    def null_action(self) -> Any:
        """An action that `step_env` takes, for its shapes."""
        return jnp.int32(0)

    @property
    def has_levels(self) -> bool:
        """Whether levels are arrays; otherwise states are made from a key alone."""
        return type(self).sample_level is not TextEnvironment.sample_level

    def action_space(self, params: Any) -> spaces.Discrete:
        """Action ids, `Discrete(num_actions)`."""
        return spaces.Discrete(self.num_actions)

    def is_done(self, state: Any, params: Any) -> Bool[Array, ""]:
        """Returns whether the episode is terminated or truncated."""
        return state.terminated | self.is_truncated(state, params)

    def is_terminated(self, state: Any, params: Any) -> Bool[Array, ""]:
        """Returns whether the episode ended by the environment's own rule."""
        return state.terminated


def hash_integers(values: Int[Array, "..."]) -> UInt32[Array, "2"]:
    """Hashes integers of any shape (two FNV-1a streams over the flattened values, little-endian words)."""
    words = values.reshape(-1).astype(jnp.uint32)

    def absorb(hashes, word):
        return (hashes ^ word) * jnp.array([16777619, 2246822519], jnp.uint32), None

    return jax.lax.scan(absorb, jnp.array([2166136261, 3266489917], jnp.uint32), words)[0]
