"""Two-armed bandit: choose by name between a small sure reward and a larger uncertain one, once."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int, Int32, Key

from envs_jax.bandit.text import make_describe
from envs_jax.environment import EnvParams, EnvState, TextEnvironment
from envs_jax.errors import BadValue
from envs_jax.gymnax_base import spaces


@struct.dataclass
class BanditState(EnvState):
    """The arms on display, as action ids in their order, and the last action (-1 before it) with its reward."""

    shown: Int32[Array, "2"]
    chosen: Int32[Array, ""]
    reward: Float32[Array, ""]


@struct.dataclass(kw_only=True)
class BanditParams(EnvParams):
    """The low arm always pays `low_reward`, the high arm `high_reward` with `high_probability`, else nothing."""

    low_reward: Float32[Array, ""]
    high_reward: Float32[Array, ""]
    high_probability: Float32[Array, ""]


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

    # There is no instruction: observations contain the rules and name both arms in the order of display. A list by id
    # would always name the low arm of a pair first; RAGEN's prompt does not list this environment's actions either.
    lists_actions = False

    def __init__(self, pairs: tuple[tuple[str, str], ...]):
        """Fixes the names (low arm, high arm); a `ValueError` without a pair, or for names that are not usable."""
        names = tuple(name for pair in pairs for name in pair)
        different = {name.strip().lower() for name in names}
        if not pairs or any(len(pair) != 2 for pair in pairs) or len(different) < len(names) or "" in different:
            raise BadValue(
                f"pairs is {pairs!r}; expected at least one pair (low arm, high arm) of non-empty names that differ by "
                "more than case",
                "pairs",
                pairs,
            )
        for name in names:
            if name != name.strip() or not name.isprintable() or "<" in name:
                raise BadValue(
                    f"pairs is {pairs!r}, with {name!r}; expected names of one line without < and without spaces "
                    "around them, because the agent writes them between tags",
                    "pairs",
                    pairs,
                )
        self.actions = names
        self.pieces, self.piece_limits, self._describe = make_describe(names)

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

    def reset_env(self, key: Key[Array, ""], params: BanditParams) -> tuple[Int32[Array, "2"], BanditState]:
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
        self, key: Key[Array, ""], state: BanditState, action: Int[Array, ""], params: BanditParams
    ) -> tuple[Int32[Array, "2"], BanditState, Float[Array, ""], Bool[Array, ""], dict[str, jax.Array]]:
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

    def describe(self, state: BanditState, params: BanditParams) -> Int32[Array, "9"]:
        """Returns the rules with the arms in order, or the reward of the chosen arm, as piece ids."""
        return self._describe(state.shown, state.chosen, state.reward)

    def success(self, state: BanditState, params: BanditParams) -> Bool[Array, ""]:
        """Returns whether the high arm of the pair on display was pulled."""
        return (state.chosen % 2 == 1) & jnp.any(state.shown == state.chosen)

    def get_obs(self, state: BanditState, params: Any = None, key: Any = None) -> Int32[Array, "2"]:
        """Returns the arms on display."""
        return state.shown

    def reward_range(self, params: BanditParams) -> tuple[Float32[Array, ""], Float32[Array, ""]]:
        """The extremes of 0 and what the arms pay."""
        paid = jnp.stack([jnp.float32(0), params.low_reward, params.high_reward])
        return jnp.min(paid), jnp.max(paid)
