"""FrozenLake: walk over slippery ice to the goal. Transitions only; levels come from a key or a pack."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int, Int8, Int32, Key

from envs_jax.environment import EnvParams, EnvState
from envs_jax.errors import BadValue
from envs_jax.frozen_lake import text
from envs_jax.frozen_lake.generator import generate
from envs_jax.frozen_lake.text import GOAL, HOLE, START
from envs_jax.grid import GridEnvironment, shift


@struct.dataclass
class FrozenLakeState(EnvState):
    """A walk in progress: the level, which stays the same, and the player's cell, exactly one of which is true."""

    level: Int8[Array, "H W"]
    player: Bool[Array, "H W"]


@struct.dataclass(kw_only=True)
class FrozenLakeParams(EnvParams):
    """Slip probability, distribution of maps, and levels.

    `success_rate` is the probability of the intended direction; the rest is split evenly over the two perpendicular
    ones. 1/3 is the classic slippery lake, 1 is deterministic. `frozen_probability` is that of each cell of a generated
    level. A reset samples one of `levels` uniformly; if N is 0, it generates one.
    """

    success_rate: Float32[Array, ""]
    frozen_probability: Float32[Array, ""]
    levels: Int8[Array, "N H W"]


class FrozenLake(GridEnvironment):
    """FrozenLake with a level per episode, as in RAGEN (arXiv 2504.20073) on the dynamics of Gymnasium's FrozenLake-v1.

    * Level: i8[H, W] of cell codes 0 frozen, 1 hole, 2 goal, 3 start.
    * Observation: i8[H, W] of display codes 0 frozen (the start too), 1 hole, 2 goal, 3 player, 4 player in a hole,
      5 player on the goal.
    * Actions: 0 Left, 1 Down, 2 Right, 3 Up. The player moves in the chosen direction with probability
      `success_rate`, else in one of the two perpendicular ones, and stays where a move would leave the board. Any
      other id stays too.
    * Reward: f32[], 1 on reaching the goal, else 0.
    * Termination: the player is in a hole or on the goal. Truncation: `max_steps_in_episode` actions.
    * info: `success`, `action_is_effective` (the player's cell changed), both bool[].
    * State: `FrozenLakeState`. `step_env` samples one uniform number with its key.
    """

    actions: tuple[str, ...] = ("Left", "Down", "Right", "Up")
    instruction = text.INSTRUCTION
    num_codes = len(text.SYMBOLS)

    def __init__(self, height: int = 4, width: int = 4, observation: str = "grid"):
        """Fixes the size of the board, and its text (see `grid.FORMATS`); raises a `ValueError` for unusable ones."""
        if min(height, width) < 1 or max(height, width) > text.MAX_SIDE or height * width < 3:
            raise BadValue(
                f"FrozenLake of {height}x{width}; expected two numbers from 1 to {text.MAX_SIDE} and three cells",
                "FrozenLake",
                (height, width),
            )
        self.height, self.width, self.observation = height, width, observation
        self.legend = () if observation == "coord" else tuple(zip(text.SYMBOLS, text.MEANINGS))
        self.pieces, self.piece_limits, self._describe = text.make_describe(height, width, observation)

    @property
    def default_params(self) -> FrozenLakeParams:
        """RAGEN's first version: `success_rate` 1/3, `frozen_probability` 0.8, 100 steps, generated levels."""
        return FrozenLakeParams(
            max_steps_in_episode=jnp.int32(100),
            success_rate=jnp.float32(1 / 3),
            frozen_probability=jnp.float32(0.8),
            levels=jnp.zeros((0, self.height, self.width), jnp.int8),
        )

    def generate_level(self, key: Key[Array, ""], params: FrozenLakeParams) -> Int8[Array, "H W"]:
        """Samples a level from the distribution of maps in `params`."""
        return generate(key, self.height, self.width, params.frozen_probability)

    def reset_to_level(
        self, level: Int[Array, "H W"], params: FrozenLakeParams
    ) -> tuple[Int8[Array, "H W"], FrozenLakeState]:
        """Starts an episode on a level; raises a `ValueError` if it has another size than the board."""
        level = self.check_size(level)
        state = FrozenLakeState(
            time=jnp.int32(0), terminated=jnp.bool_(False), level=level.astype(jnp.int8), player=level == START
        )
        return self.get_obs(state), state

    def step_env(
        self, key: Key[Array, ""], state: FrozenLakeState, action: Int[Array, ""], params: FrozenLakeParams
    ) -> tuple[Int8[Array, "H W"], FrozenLakeState, Float[Array, ""], Bool[Array, ""], dict[str, jax.Array]]:
        """Takes one action; see the class for the rules."""
        active = ~self.is_done(state, params)
        draw = jax.random.uniform(key)
        # One number decides: the first interval is the intended direction, the halves of the rest the other two.
        halfway = params.success_rate + (1 - params.success_rate) / 2
        turn = jnp.where(draw < params.success_rate, 0, jnp.where(draw < halfway, -1, 1))
        known = (action >= 0) & (action < self.num_actions)
        direction = jnp.where(known & active, (action + turn) % self.num_actions, -1)
        ahead = shift(state.player, direction, text.DIRECTIONS)
        player = jnp.where(jnp.any(ahead), ahead, state.player)
        in_hole, on_goal = (jnp.any(player & (state.level == cell)) for cell in (HOLE, GOAL))
        moved = active & jnp.any(player & ~state.player)
        state = state.replace(
            time=state.time + active.astype(jnp.int32),
            terminated=state.terminated | (active & (in_hole | on_goal)),
            player=player,
        )
        reward = (active & on_goal).astype(jnp.float32)
        info = {"success": on_goal, "action_is_effective": moved}
        return self.get_obs(state), state, reward, state.terminated, info

    def get_obs(self, state: FrozenLakeState, params: Any = None, key: Any = None) -> Int8[Array, "H W"]:
        """Returns the board as display codes."""
        return text.display_codes(state.level, state.player)

    def describe(self, state: FrozenLakeState, params: FrozenLakeParams) -> Int32[Array, " P"]:
        """Returns the observation as piece ids, padded with `NO_PIECE`."""
        return self._describe(state.level, state.player)

    def success(self, state: FrozenLakeState, params: FrozenLakeParams) -> Bool[Array, ""]:
        """Returns whether the player is on the goal."""
        return jnp.any(state.player & (state.level == GOAL))

    def reward_range(self, params: FrozenLakeParams) -> tuple[Float32[Array, ""], Float32[Array, ""]]:
        """From 0 to 1."""
        return jnp.float32(0), jnp.float32(1)


def cell_of_player(state: FrozenLakeState) -> Int32[Array, ""]:
    """The number of the player's cell, in reading order."""
    return jnp.argmax(state.player.reshape(-1)).astype(jnp.int32)
