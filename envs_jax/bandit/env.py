"""Two-armed bandit: choose by name between a small sure reward and a larger uncertain one, once."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import spaces

from envs_jax.bandit.text import INSTRUCTION, make_describe
from envs_jax.environment import EnvParams, EnvState, TextEnvironment


@struct.dataclass
class BanditState(EnvState):
    """The arms on display and the result of the last action.

    Attributes:
        time: i32[] primitive actions taken so far.
        terminated: bool[] an arm on display has been pulled.
        shown: i32[2] action ids of the two arms, in the order of display.
        chosen: i32[] action id of the last action, -1 before it.
        reward: f32[] its reward.
    """

    shown: jax.Array
    chosen: jax.Array
    reward: jax.Array


@struct.dataclass(kw_only=True)
class BanditParams(EnvParams):
    """Rewards of the arms.

    Attributes:
        max_steps_in_episode: i32[] primitive actions after which an episode is truncated.
        low_reward: f32[] the low arm always pays this.
        high_reward: f32[] the high arm pays this or nothing.
        high_probability: f32[] probability that the high arm pays.
    """

    low_reward: jax.Array
    high_reward: jax.Array
    high_probability: jax.Array


class Bandit(TextEnvironment):
    """Two-armed bandit of RAGEN (arXiv 2504.20073): only the meaning of the names shows which arm is better.

    * Level: a pair of arms, uniform among the pairs, and the order of display, each with probability 1/2.
    * Observation: i32[2], action ids of the arms in the order of display.
    * Actions: arm names. Pair `i` has the low arm as id `2 i` and the high arm as id `2 i + 1`.
    * Reward: f32[], for the low arm `low_reward` (0.1); for the high arm `high_reward` (1) with probability
      `high_probability` (0.25), else 0.
    * Termination: an arm on display was pulled. Truncation: `max_steps_in_episode` (1) actions. A name that is not on
      display pulls nothing: reward 0, not effective, and the episode is truncated instead of terminated.
    * info: `success` (the high arm was pulled, even if it paid nothing), `action_is_effective`, both bool[].
    * State: `BanditState`. `step_env` samples the reward with its key; it does not depend on the level.
    """

    instruction = INSTRUCTION
    # A list by id would always name the low arm of a pair first. Observations name both arms in the order of display,
    # and RAGEN's prompt does not list this environment's actions either.
    lists_actions = False

    def __init__(self, pairs: tuple[tuple[str, str], ...]):
        """Fixes the arms.

        Args:
            pairs: Names (low arm, high arm).

        Raises:
            ValueError: there is no pair, or the names are not different and non-empty.
        """
        names = tuple(name for pair in pairs for name in pair)
        different = {name.strip().lower() for name in names}
        if not pairs or any(len(pair) != 2 for pair in pairs) or len(different) < len(names) or "" in different:
            raise ValueError(
                f"pairs is {pairs!r}; expected at least one pair (low arm, high arm) of non-empty names that differ by "
                "more than case"
            )
        self.actions = names
        self.pieces, self.piece_limits, self._spell = make_describe(names)

    @property
    def default_params(self) -> BanditParams:
        """RAGEN's rewards; one action."""
        return BanditParams(
            max_steps_in_episode=jnp.int32(1),
            low_reward=jnp.float32(0.1),
            high_reward=jnp.float32(1.0),
            high_probability=jnp.float32(0.25),
        )

    def observation_space(self, params: BanditParams) -> spaces.Box:
        """Action ids of the arms on display, i32[2]."""
        return spaces.Box(0, self.num_actions - 1, (2,), jnp.int32)

    def reset_env(self, key: jax.Array, params: BanditParams) -> tuple[jax.Array, BanditState]:
        """Chooses the pair on display; the key decides which pair and in which order."""
        # The arm shown first is uniform among all arms; the id of the other arm differs in the last bit.
        first = jax.random.randint(key, (), 0, self.num_actions)
        state = BanditState(
            time=jnp.int32(0),
            terminated=jnp.bool_(False),
            shown=jnp.stack([first, first ^ 1]),
            chosen=jnp.int32(-1),
            reward=jnp.float32(0.0),
        )
        return state.shown, state

    def step_env(
        self, key: jax.Array, state: BanditState, action: jax.Array, params: BanditParams
    ) -> tuple[jax.Array, BanditState, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Pulls an arm; see the class for the rules."""
        active = ~self.is_done(state, params)
        action = jnp.asarray(action, jnp.int32)
        pulled = active & jnp.any(state.shown == action)
        pays = jax.random.bernoulli(key, params.high_probability)
        high = jnp.where(pays, params.high_reward, 0.0)
        reward = jnp.where(pulled, jnp.where(action % 2 == 1, high, params.low_reward), 0.0)
        known = active & (action >= 0) & (action < self.num_actions)
        state = state.replace(
            time=state.time + active.astype(jnp.int32),
            terminated=state.terminated | pulled,
            chosen=jnp.where(known, action, state.chosen),
            reward=jnp.where(active, reward, state.reward),
        )
        info = {"success": self.success(state, params), "action_is_effective": pulled}
        return state.shown, state, reward, state.terminated, info

    def describe(self, state: BanditState, params: BanditParams) -> jax.Array:
        """Returns the rules with the arms in order, or the reward of the chosen arm: piece ids i32[9], padded."""
        return self._spell(state.shown, state.chosen, state.reward)

    def success(self, state: BanditState, params: BanditParams) -> jax.Array:
        """Returns bool[]: the high arm of the pair on display was pulled."""
        return (state.chosen % 2 == 1) & jnp.any(state.shown == state.chosen)

    def get_obs(self, state: BanditState, params: Any = None, key: Any = None) -> jax.Array:
        """Returns the arms on display, i32[2]."""
        return state.shown
