"""Sokoban: push every box onto a target. Transitions only; levels come from a generator or a pack."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Float32, Int, Int8, Int32, Key

from envs_jax.environment import EnvParams, EnvState
from envs_jax.errors import BadValue
from envs_jax.grid import GridEnvironment, shift
from envs_jax.sokoban import text
from envs_jax.sokoban.text import BOX, BOX_ON_TARGET, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, WALL


@struct.dataclass
class SokobanState(EnvState):
    """A board in play: `room` has the fixed cells (wall, floor, target); exactly one cell of `player` is true."""

    room: Int8[Array, "H W"]
    boxes: Bool[Array, "H W"]
    player: Bool[Array, "H W"]


@struct.dataclass(kw_only=True)
class SokobanParams(EnvParams):
    """Rewards and levels.

    `step_reward` is paid for every action, effective or not; the others when more targets are covered than before, when
    fewer are, and when the last one is. A reset samples one of `levels` uniformly; if N is 0, it generates one.
    """

    step_reward: Float32[Array, ""]
    box_on_reward: Float32[Array, ""]
    box_off_reward: Float32[Array, ""]
    solved_reward: Float32[Array, ""]
    levels: Int8[Array, "N H W"]


class Sokoban(GridEnvironment):
    """Sokoban with one primitive action per step, as in RAGEN (arXiv 2504.20073) and gym_sokoban 0.0.6.

    * Level: i8[H, W] of cell codes 0 wall, 1 floor, 2 target, 3 box on target, 4 box, 5 player, 6 player on target.
      Cells outside the board count as wall.
    * Observation: i8[H, W], the same codes.
    * Actions: 0 Up, 1 Down, 2 Left, 3 Right. The player pushes a box ahead if the cell behind it is free, walks if the
      cell ahead is free, and otherwise stays. Any other id stays too.
    * Reward: f32[], -0.1 for each action, +1 (-1) when the number of covered targets rises (falls), +10 when all are
      covered. A level that starts with covered targets starts with them counted.
    * Termination: every target is covered. Truncation: `max_steps_in_episode` actions.
    * info: `success`, `action_is_effective` (the player moved), both bool[]; `boxes_on_target` f32[].
    * State: `SokobanState`. The transition is deterministic: `step_env` ignores its key.
    """

    actions: tuple[str, ...] = ("Up", "Down", "Left", "Right")
    instruction = text.INSTRUCTION
    num_codes = len(text.SYMBOLS)
    surrounding = WALL

    def __init__(
        self,
        height: int = 6,
        width: int = 6,
        boxes: int = 1,
        vocabulary: tuple[str, ...] = text.SYMBOLS,
        observation: str = "grid",
        generator: Callable[[Key[Array, ""]], Int8[Array, "H W"]] | None = None,
    ):
        """Fixes the size of the board with its border, the most boxes of a level, and the text (see `grid.FORMATS`).

        `vocabulary` has seven symbols, by cell code. Without a generator, levels come from a pack. Raises a
        `ValueError` for options that are not usable.
        """
        if height < 1 or width < 1 or boxes < 1:
            raise BadValue(
                f"Sokoban of {height}x{width} with {boxes} boxes; expected three numbers of at least 1",
                "Sokoban",
                (height, width, boxes),
            )
        vocabulary = tuple(vocabulary)
        self.height, self.width, self.boxes = height, width, boxes
        self.vocabulary, self.observation, self.generator = vocabulary, observation, generator
        self.legend = () if observation == "coord" else tuple(zip(vocabulary, text.MEANINGS))
        described = text.make_describe(height, width, boxes, vocabulary, observation)
        self.pieces, self.piece_limits, self._describe = described

    @property
    def default_params(self) -> SokobanParams:
        """RAGEN's rewards, 100 steps, levels from the generator."""
        return SokobanParams(
            max_steps_in_episode=jnp.int32(100),
            step_reward=jnp.float32(-0.1),
            box_on_reward=jnp.float32(1.0),
            box_off_reward=jnp.float32(-1.0),
            solved_reward=jnp.float32(10.0),
            levels=jnp.zeros((0, self.height, self.width), jnp.int8),
        )

    def generate_level(self, key: Key[Array, ""], params: SokobanParams) -> Int8[Array, "H W"]:
        """Generates a level; raises a `ValueError` without a generator."""
        if self.generator is None:
            raise BadValue(
                "Sokoban has neither a generator nor levels; give `generator=` or fill `params.levels`", "generator"
            )
        return self.generator(key)

    def reset_to_level(
        self, level: Int[Array, "H W"], params: SokobanParams
    ) -> tuple[Int8[Array, "H W"], SokobanState]:
        """Starts an episode on a level; raises a `ValueError` if it has another size than the board."""
        level = self.check_size(level)
        on_target = (level == TARGET) | (level == BOX_ON_TARGET) | (level == PLAYER_ON_TARGET)
        boxes = (level == BOX) | (level == BOX_ON_TARGET)
        state = SokobanState(
            time=jnp.int32(0),
            terminated=~jnp.any(on_target & ~boxes),
            room=jnp.where(level == WALL, WALL, jnp.where(on_target, TARGET, FLOOR)).astype(jnp.int8),
            boxes=boxes,
            player=level >= PLAYER,
        )
        return self.get_obs(state), state

    def step_env(
        self, key: Key[Array, ""], state: SokobanState, action: Int[Array, ""], params: SokobanParams
    ) -> tuple[Int8[Array, "H W"], SokobanState, Float[Array, ""], Bool[Array, ""], dict[str, jax.Array]]:
        """Takes one action; see the class for the rules."""
        active = ~self.is_done(state, params)
        ahead = shift(state.player, action, text.DIRECTIONS)
        behind = shift(ahead, action, text.DIRECTIONS)
        free = (state.room != WALL) & ~state.boxes
        push = active & jnp.any(ahead & state.boxes) & jnp.any(behind & free)
        moved = push | (active & jnp.any(ahead & free))
        boxes = jnp.where(push, (state.boxes & ~ahead) | behind, state.boxes)

        targets = state.room == TARGET
        before, after = jnp.sum(state.boxes & targets), jnp.sum(boxes & targets)
        solved = ~jnp.any(targets & ~boxes)
        reward = (
            params.step_reward
            + jnp.where(after > before, params.box_on_reward, 0.0)
            + jnp.where(after < before, params.box_off_reward, 0.0)
            + jnp.where(solved, params.solved_reward, 0.0)
        )
        state = state.replace(
            time=state.time + active.astype(jnp.int32),
            terminated=state.terminated | (active & solved),
            boxes=boxes,
            player=jnp.where(moved, ahead, state.player),
        )
        info = {"success": solved, "action_is_effective": moved, "boxes_on_target": after.astype(jnp.float32)}
        return self.get_obs(state), state, jnp.where(active, reward, 0.0), state.terminated, info

    def get_obs(self, state: SokobanState, params: Any = None, key: Any = None) -> Int8[Array, "H W"]:
        """Returns the board as cell codes."""
        on_target = state.room == TARGET
        standing = jnp.where(on_target, PLAYER_ON_TARGET, PLAYER)
        box = jnp.where(on_target, BOX_ON_TARGET, BOX)
        return jnp.where(state.player, standing, jnp.where(state.boxes, box, state.room)).astype(jnp.int8)

    def describe(self, state: SokobanState, params: SokobanParams) -> Int32[Array, " P"]:
        """Returns the observation as piece ids, padded with `NO_PIECE`."""
        return self._describe(self.get_obs(state))

    def success(self, state: SokobanState, params: SokobanParams) -> Bool[Array, ""]:
        """Returns whether every target is covered."""
        return ~jnp.any((state.room == TARGET) & ~state.boxes)

    def reward_range(self, params: SokobanParams) -> tuple[Float32[Array, ""], Float32[Array, ""]]:
        """The extremes of what an action is paid: one push covers or uncovers at most one target."""
        changes = jnp.stack(
            [jnp.float32(0), params.box_on_reward, params.box_off_reward, params.box_on_reward + params.solved_reward]
        )
        return params.step_reward + jnp.min(changes), params.step_reward + jnp.max(changes)
