"""Sokoban: push every box onto a target. Transitions only; levels come from a generator or a pack.

Shapes: `H`, `W` rows and columns of the board, `N` levels of a pack, `P` pieces of an observation.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import struct

from envs_jax.environment import EnvParams, EnvState
from envs_jax.grid import GridEnvironment, check_format
from envs_jax.sokoban.text import (
    BOX,
    BOX_ON_TARGET,
    FLOOR,
    INSTRUCTION,
    MEANINGS,
    PLAYER,
    PLAYER_ON_TARGET,
    SYMBOLS,
    TARGET,
    WALL,
    check_symbols,
    make_describe,
)


@struct.dataclass
class SokobanState(EnvState):
    """A board in play.

    Attributes:
        time: i32[] primitive actions taken so far.
        terminated: bool[] every target is covered.
        room: i8[H, W] fixed cells: 0 wall, 1 floor, 2 target.
        boxes: bool[H, W] cells of the boxes.
        player: bool[H, W] the player's cell; exactly one is true.
    """

    room: jax.Array
    boxes: jax.Array
    player: jax.Array


@struct.dataclass(kw_only=True)
class SokobanParams(EnvParams):
    """Rewards and levels.

    Attributes:
        max_steps_in_episode: i32[] primitive actions after which an episode is truncated.
        step_reward: f32[] paid for every action, effective or not.
        box_on_reward: f32[] paid when more targets are covered than before.
        box_off_reward: f32[] paid when fewer targets are covered than before.
        solved_reward: f32[] paid when the last target is covered.
        levels: i8[N, H, W] a level pack; a reset samples one row uniformly. N = 0: the generator makes levels.
    """

    step_reward: jax.Array
    box_on_reward: jax.Array
    box_off_reward: jax.Array
    solved_reward: jax.Array
    levels: jax.Array


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
    instruction = INSTRUCTION
    num_codes = len(SYMBOLS)

    def __init__(
        self,
        height: int = 6,
        width: int = 6,
        boxes: int = 1,
        vocabulary: tuple[str, ...] = SYMBOLS,
        observation: str = "grid",
        generator: Callable[[jax.Array], jax.Array] | None = None,
    ):
        """Fixes the shapes and the text.

        Args:
            height: Rows of the board, border included.
            width: Columns of the board, border included.
            boxes: The most boxes that a level can hold.
            vocabulary: Seven symbols, by cell code.
            observation: "grid", "coord" or "grid_coord" (see `text.make_describe`).
            generator: Function from a key to a level i8[H, W], jit- and vmap-able; None if levels come from a pack.

        Raises:
            ValueError: a size, the vocabulary or the observation format is not usable.
        """
        if height < 1 or width < 1 or boxes < 1:
            raise ValueError(f"Sokoban of {height}x{width} with {boxes} boxes; expected three numbers of at least 1")
        check_format(observation)
        vocabulary = tuple(vocabulary)
        check_symbols(vocabulary)
        self.height, self.width, self.boxes = height, width, boxes
        self.vocabulary, self.observation, self.generator = vocabulary, observation, generator
        self.legend = () if observation == "coord" else tuple(zip(vocabulary, MEANINGS))
        self.pieces, self.piece_limits, self._spell = make_describe(height, width, boxes, vocabulary, observation)

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

    def generate_level(self, key: jax.Array, params: SokobanParams) -> jax.Array:
        """Generates a level, i8[H, W].

        Raises:
            ValueError: there is no generator.
        """
        if self.generator is None:
            raise ValueError("Sokoban has neither a generator nor levels; give `generator=` or fill `params.levels`")
        return self.generator(key)

    def reset_to_level(self, level: jax.Array, params: SokobanParams) -> tuple[jax.Array, SokobanState]:
        """Starts an episode on a level, i8[H, W].

        Raises:
            ValueError: the level has another size than the board.
        """
        level = self.checked(level)
        on_target = (level == TARGET) | (level == BOX_ON_TARGET) | (level == PLAYER_ON_TARGET)
        boxes = (level == BOX) | (level == BOX_ON_TARGET)
        state = SokobanState(
            time=jnp.int32(0),
            terminated=~jnp.any(on_target & ~boxes),
            room=jnp.where(level == WALL, WALL, jnp.where(on_target, TARGET, FLOOR)).astype(jnp.int8),
            boxes=boxes,
            player=level >= PLAYER,
        )
        return self.codes(state), state

    def step_env(
        self, key: jax.Array, state: SokobanState, action: jax.Array, params: SokobanParams
    ) -> tuple[jax.Array, SokobanState, jax.Array, jax.Array, dict[str, jax.Array]]:
        """Takes one action; see the class for the rules."""
        active = ~self.is_done(state, params)
        ahead = _shift(state.player, action)
        behind = _shift(ahead, action)
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
        info = {
            "success": self.success(state, params),
            "action_is_effective": moved,
            "boxes_on_target": after.astype(jnp.float32),
        }
        return self.codes(state), state, jnp.where(active, reward, 0.0), state.terminated, info

    def codes(self, state: SokobanState) -> jax.Array:
        """Returns the board as cell codes, i8[H, W]."""
        on_target = state.room == TARGET
        standing = jnp.where(on_target, PLAYER_ON_TARGET, PLAYER)
        box = jnp.where(on_target, BOX_ON_TARGET, BOX)
        return jnp.where(state.player, standing, jnp.where(state.boxes, box, state.room)).astype(jnp.int8)

    def describe(self, state: SokobanState, params: SokobanParams) -> jax.Array:
        """Returns the observation as piece ids, i32[P], padded with `NO_PIECE`."""
        return self._spell(self.codes(state))

    def success(self, state: SokobanState, params: SokobanParams) -> jax.Array:
        """Returns bool[]: every target is covered."""
        return ~jnp.any((state.room == TARGET) & ~state.boxes)


def _shift(mask: jax.Array, action: jax.Array) -> jax.Array:
    """Moves a mask bool[H, W] one cell in the direction of an action; cells that leave the board are dropped.

    It shifts the whole mask, because shifts fuse into the rest of the step and an indexed update would not.
    """
    padded = jnp.pad(mask, 1)
    moves = (padded[2:, 1:-1], padded[:-2, 1:-1], padded[1:-1, 2:], padded[1:-1, :-2])
    shifted = jnp.zeros_like(mask)
    for index, move in enumerate(moves):
        shifted |= move & (action == index)
    return shifted
