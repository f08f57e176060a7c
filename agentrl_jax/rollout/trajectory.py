"""Inputs and outputs of a rollout.

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
"""Why an episode is truncated: the turns of `RolloutSettings.horizon` are played, a limit of actions or steps is
reached (`RolloutSettings.max_actions`, or a limit of the environment), or the context is full."""


class RolloutSettings(struct.PyTreeNode):
    """Traced settings: changing a value does not recompile the program.

    Attributes:
        temperature: f32[E] sampling temperature of each episode; 0 is greedy.
        horizon: i32[] turns that may be played, at most the static T.
        max_actions: i32[] primitive actions that an episode may execute.
        env_params: environment parameters of each task, as a tuple.
        format_penalty, overlong_buffer, overlong_penalty: f32[], see `returns.Penalties`; not read by the engine.
        split: i32[K], or i32[] for all tasks: the `envs_jax.splits.Split` that compiled tasks sample levels from.
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
    """The episodes that a rollout plays. These ids and the rollout's key determine everything random in an episode.

    Attributes:
        group: i32[E] number of the group; its members share level and prompt.
        member: i32[E] number within the group.
        task: i32[E] index of the task.
        level: i32[E] row of the task's level pack, or -1 to sample the level with the group's key.
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
        logprob: f32[B, L] log-probability of each token under the distribution it was sampled from.
        ended: bool[B] the last token is a sampled end-of-turn token.
    """

    tokens: jax.Array
    length: jax.Array
    logprob: jax.Array
    ended: jax.Array


class TurnResult(struct.PyTreeNode):
    """Result of one turn, for B rows.

    Attributes:
        actions: i32[B, A] executed primitive actions, padded with -1.
        reward: f32[B] sum of the primitive rewards, without penalties.
        valid: bool[B] the response has at least one valid action.
        format_error: i32[B] 1 where an action could not be parsed or there was none.
        state_hash: u32[B, 2] hash of the state before the response.
        terminated: bool[B] the environment reached a terminal state.
        truncated: bool[B] a limit of steps or actions was reached first.
        success: bool[B] the task is solved.
        failed: bool[B] the environment raised an error or had no level of the split; the episode is not trained on.
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
    """A `TurnResult` of `batch` turns that were not played.

    Args:
        batch: B.
        max_actions: A.
        info_keys: names of the environment information.
        xp: array module: jax.numpy, or numpy for code that must not call JAX.
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
        response: `Response` with leading axes [E, T]; all of its tokens were sampled and are trained.
        turn: `TurnResult` with leading axes [E, T].
        num_turns: i32[E] turns played.
        ids: `EpisodeIds`.
        overflow: bool[E] an observation did not fit its O tokens and was cut.
        truncation: i32[E] why the episode was truncated: 1 + the index in `TRUNCATIONS`, or 0 where it was not. A
            failed episode is not truncated.
        final_observation: i32[E, O] and final_observation_length i32[E]: where the episode was truncated, the
            observation that the next response would have answered; length 0 elsewhere.
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
        """bool[E, T, L]: tokens sampled from the policy, the loss mask."""
        return jnp.arange(self.response.tokens.shape[-1]) < self.response.length[..., None]

    @property
    def turn_mask(self) -> jax.Array:
        """bool[E, T]: turns that were played."""
        return jnp.arange(self.turn.reward.shape[1]) < self.num_turns[:, None]

    @property
    def returns(self) -> jax.Array:
        """f32[E]: raw return, without penalties."""
        return jnp.sum(self.turn.reward, axis=1)

    @property
    def format_errors(self) -> jax.Array:
        """i32[E]: turns with a format error."""
        return jnp.sum(self.turn.format_error, axis=1)

    @property
    def failed(self) -> jax.Array:
        """bool[E]: the environment failed."""
        return jnp.any(self.turn.failed, axis=1)

    @property
    def success(self) -> jax.Array:
        """bool[E]: the task was solved."""
        return jnp.any(self.turn.success, axis=1)


class RolloutStats(struct.PyTreeNode):
    """Counters of one rollout, i32[] inside the engine, i32[R] over the R devices outside.

    Attributes:
        decode_steps: forward passes of one token over the slots.
        sampled_tokens: tokens sampled from the policy.
        prefill_steps: forward passes over observation chunks.
        slot_steps: decode_steps x slots; sampled_tokens / slot_steps is the active token share.
        episodes: episodes played.
        failed: episodes whose environment failed.
        solved: other episodes that solved their task.
        environment_steps: primitive actions executed.
        rounds: how often E episodes were played; more than 1 only with `resampling`.
        measured: with `resampling`, sums of the metrics of all episodes played, by name, see
            `learner.measures.measure`; otherwise empty, since the trajectory has all episodes.
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
    """The hash of the first state of every played episode, as 16 hexadecimal digits."""
    return hexadecimal(np.asarray(trajectory.turn.state_hash[:, 0])[np.asarray(trajectory.num_turns) > 0])


def hexadecimal(hashes: np.ndarray) -> list[str]:
    """Hashes u32[n, 2] as text."""
    return [f"{first:08x}{second:08x}" for first, second in hashes.tolist()]
