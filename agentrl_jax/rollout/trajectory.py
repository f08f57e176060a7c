"""What a rollout is given and what it returns.

Shapes: `E` episodes, `T` turns, `P` prompt tokens, `O` tokens of an observation, `L` tokens of a response, `A` actions
of one turn.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from agentrl_jax.algos.masked import Mean
from envs_jax.splits import Split

TRUNCATIONS = ("turns", "actions", "context")
"""Why an episode ends before its environment does: the turns of `RolloutSettings.horizon` are played, a limit of
actions or steps is reached (`RolloutSettings.max_actions`, or one of the environment's own), or its context is full."""


class RolloutSettings(struct.PyTreeNode):
    """Traced settings: changing one compiles nothing.

    Attributes:
        temperature: f32[E] sampling temperature of each episode; 0 is greedy.
        horizon: i32[] turns that may be played, at most the static T.
        max_actions: i32[] primitive actions that an episode may execute.
        env_params: tuple with the environment parameters of each task.
        format_penalty, overlong_buffer, overlong_penalty: f32[], see `returns.Penalties`; not read by the engine.
        split: i32[K] or one for all tasks: the `envs_jax.splits.Split` that levels of compiled tasks are drawn from.
    """

    temperature: jax.Array
    horizon: jax.Array
    max_actions: jax.Array
    env_params: tuple[Any, ...]
    format_penalty: jax.Array | float = 0.0
    overlong_buffer: jax.Array | float = 0.0
    overlong_penalty: jax.Array | float = 0.0
    split: jax.Array | int = int(Split.ANY)


class EpisodeIds(struct.PyTreeNode):
    """Which episodes a rollout plays. Everything random in an episode follows from its row here and the rollout's key.

    Attributes:
        group: i32[E] group; its members share level and prompt.
        member: i32[E] number within the group.
        task: i32[E] index of the task.
        level: i32[E] row of the task's level pack, or -1 to draw the level from the group's key.
    """

    group: jax.Array
    member: jax.Array
    task: jax.Array
    level: jax.Array


class Response(struct.PyTreeNode):
    """Responses of B rows.

    Attributes:
        tokens: i32[B, L] sampled tokens, padded on the right.
        length: i32[B] number of sampled tokens.
        logprob: f32[B, L] log-probability of each under the distribution it was drawn from.
        ended: bool[B] the last token is a sampled end-of-turn token.
    """

    tokens: jax.Array
    length: jax.Array
    logprob: jax.Array
    ended: jax.Array


class TurnResult(struct.PyTreeNode):
    """What one turn did, for B rows.

    Attributes:
        actions: i32[B, A] executed primitive actions, padded with -1.
        reward: f32[B] sum of the primitive rewards, without penalty.
        valid: bool[B] at least one valid action was given.
        format_error: i32[B] 1 where an action could not be read or none was given.
        state_hash: u32[B, 2] hash of the state in which the response was given.
        terminated: bool[B] the environment's own end.
        truncated: bool[B] a limit of steps or actions was reached first.
        success: bool[B] the task is solved.
        failed: bool[B] the environment itself broke, or had no level of the split; nothing is learned from the episode.
        info: numeric environment information, f32[B] each.
    """

    actions: jax.Array
    reward: jax.Array
    valid: jax.Array
    format_error: jax.Array
    state_hash: jax.Array
    terminated: jax.Array
    truncated: jax.Array
    success: jax.Array
    failed: jax.Array
    info: dict[str, jax.Array]


def unplayed(batch: int, max_actions: int, info_keys: Sequence[str], xp: ModuleType = jnp) -> TurnResult:
    """`batch` turns that were not played.

    Args:
        batch: B.
        max_actions: A.
        info_keys: names of the environment information.
        xp: makes the arrays: jax.numpy, or numpy for code that must not call JAX.
    """
    flags = ("valid", "terminated", "truncated", "success", "failed")
    return TurnResult(
        actions=xp.full((batch, max_actions), -1, xp.int32),
        reward=xp.zeros(batch, xp.float32),
        format_error=xp.zeros(batch, xp.int32),
        state_hash=xp.zeros((batch, 2), xp.uint32),
        info={name: xp.zeros(batch, xp.float32) for name in info_keys},
        **{name: xp.zeros(batch, bool) for name in flags},
    )


class Trajectory(struct.PyTreeNode):
    """E episodes, stored by turn. A turn that was not played has length 0 everywhere.

    Attributes:
        prompt: i32[E, P] and prompt_length i32[E]: the task's prefix.
        observation: i32[E, T, O] and observation_length i32[E, T]: tokens inserted before each response (not trained).
        response: `Response` with leading axes [E, T]; every one of its tokens was sampled and is trained.
        turn: `TurnResult` with leading axes [E, T].
        num_turns: i32[E] turns played.
        ids: `EpisodeIds`.
        overflow: bool[E] an observation did not fit its O tokens and was cut.
        truncation: i32[E] what ended the episode before the environment did: 0 where nothing has, else 1 + the index in
            `TRUNCATIONS`. An episode that broke is not truncated.
        final_observation: i32[E, O] and final_observation_length i32[E]: where the episode was truncated, what the next
            response would have answered; length 0 elsewhere.
    """

    prompt: jax.Array
    prompt_length: jax.Array
    observation: jax.Array
    observation_length: jax.Array
    response: Response
    turn: TurnResult
    num_turns: jax.Array
    ids: EpisodeIds
    overflow: jax.Array
    truncation: jax.Array
    final_observation: jax.Array
    final_observation_length: jax.Array

    @property
    def response_mask(self) -> jax.Array:
        """bool[E, T, L]: tokens drawn from the policy, the loss mask."""
        return jnp.arange(self.response.tokens.shape[-1]) < self.response.length[..., None]

    @property
    def turn_mask(self) -> jax.Array:
        """bool[E, T]: turns that were played."""
        return jnp.arange(self.turn.reward.shape[1]) < self.num_turns[:, None]

    @property
    def returns(self) -> jax.Array:
        """f32[E]: raw return, without penalty."""
        return jnp.sum(self.turn.reward, axis=1)

    @property
    def format_errors(self) -> jax.Array:
        """i32[E]: turns with a format error."""
        return jnp.sum(self.turn.format_error, axis=1)

    @property
    def failed(self) -> jax.Array:
        """bool[E]: the environment broke."""
        return jnp.any(self.turn.failed, axis=1)

    @property
    def success(self) -> jax.Array:
        """bool[E]: the task was solved."""
        return jnp.any(self.turn.success, axis=1)


class RolloutStats(struct.PyTreeNode):
    """Counters of one rollout, i32[] inside the engine, i32[R] over the R devices outside.

    Attributes:
        decode_steps: forward passes of one token over the slots.
        sampled_tokens: tokens drawn from the policy.
        prefill_steps: forward passes over observation chunks.
        slot_steps: decode_steps x slots; sampled_tokens / slot_steps is the active token share.
        episodes: episodes played, of which
        failed: the environment broke in so many, and
        solved: so many of the others solved their task.
        environment_steps: primitive actions executed.
        rounds: times that E episodes were played, more than one under `resampling`.
        measured: under `resampling`, sums of the metrics of all episodes played by name, see `train.measures.measure`;
            empty otherwise, where the trajectory has all of them.
    """

    decode_steps: jax.Array
    sampled_tokens: jax.Array
    prefill_steps: jax.Array
    slot_steps: jax.Array
    episodes: jax.Array
    failed: jax.Array
    solved: jax.Array
    environment_steps: jax.Array
    rounds: jax.Array
    measured: dict[str, Mean] = struct.field(default_factory=dict)


def level_ids(trajectory: Trajectory) -> list[str]:
    """The hash of the first state of every episode that was played, as 16 hexadecimal digits."""
    return hexadecimal(np.asarray(trajectory.turn.state_hash[:, 0])[np.asarray(trajectory.num_turns) > 0])


def hexadecimal(hashes: np.ndarray) -> list[str]:
    """Hashes u32[n, 2] as text."""
    return [f"{first:08x}{second:08x}" for first, second in hashes.tolist()]
