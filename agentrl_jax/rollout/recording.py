"""Records the finished turns in a trajectory. Shapes as in `engine`."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from agentrl_jax.rollout.contexts import Bounds, no_join
from agentrl_jax.rollout.envs.batched_env import BatchedEnv, Message
from agentrl_jax.rollout.trajectory import EpisodeIds, Response, Trajectory, TurnResult


def empty_response(batch: int, length: int) -> Response:
    """Empty responses of `batch` rows, with room for `length` tokens."""
    return Response(
        tokens=jnp.zeros((batch, length), jnp.int32),
        length=jnp.zeros(batch, jnp.int32),
        logprob=jnp.zeros((batch, length), jnp.float32),
        ended=jnp.zeros(batch, bool),
    )


def empty_trajectory(batched_env: BatchedEnv, ids: EpisodeIds, bounds: Bounds, max_response_tokens: int) -> Trajectory:
    """A trajectory of the episodes `ids` without played turns."""
    episodes, turns = ids.group.shape[0], bounds.turns
    count = episodes * turns
    flat = empty_response(count, max_response_tokens), batched_env.empty_result(count), no_join(count, bounds.recalled)
    response, result, join = jax.tree.map(lambda x: x.reshape(episodes, turns, *x.shape[1:]), flat)
    return Trajectory(
        prompt=jnp.asarray(batched_env.prefix)[ids.task],
        prompt_length=jnp.asarray(batched_env.prefix_length)[ids.task],
        observation=jnp.zeros((episodes, turns, batched_env.observation_tokens), jnp.int32),
        observation_length=jnp.zeros((episodes, turns), jnp.int32),
        join=join,
        response=response,
        turn=result,
        num_turns=jnp.zeros(episodes, jnp.int32),
        ids=ids,
        overflow=jnp.zeros(episodes, bool),
        truncation=jnp.zeros(episodes, jnp.int32),
        final_observation=jnp.zeros((episodes, batched_env.observation_tokens), jnp.int32),
        final_observation_length=jnp.zeros(episodes, jnp.int32),
        final_join=no_join(episodes, bounds.recalled),
    )


def record_turn(
    trajectory: Trajectory,
    episode: Int[Array, " B"],
    turn: Int[Array, " B"],
    message: Message,
    response: Response,
    result: TurnResult,
    finished: Bool[Array, " B"],
) -> Trajectory:
    """Adds turn number `turn` of the slots where it is `finished`; `message` is the observation it began with."""
    episode = jnp.where(finished, episode, trajectory.num_turns.shape[0])

    def put(buffer, rows):
        return buffer.at[episode, turn].set(rows, mode="drop")

    return trajectory.replace(
        observation=put(trajectory.observation, message.tokens),
        observation_length=put(trajectory.observation_length, message.length),
        join=jax.tree.map(put, trajectory.join, message.join),
        response=jax.tree.map(put, trajectory.response, response),
        turn=jax.tree.map(put, trajectory.turn, result),
        num_turns=trajectory.num_turns.at[episode].add(1, mode="drop"),
        overflow=trajectory.overflow.at[episode].max(message.overflow, mode="drop"),
    )


def record_truncation(
    trajectory: Trajectory,
    episode: Int[Array, " B"],
    message: Message,
    cause: Int[Array, " B"],
    truncated: Bool[Array, " B"],
) -> Trajectory:
    """Adds the cause and the final observation of the slots whose episode is truncated now."""
    episode = jnp.where(truncated, episode, trajectory.num_turns.shape[0])

    def put(buffer, rows):
        return buffer.at[episode].set(rows, mode="drop")

    return trajectory.replace(
        truncation=put(trajectory.truncation, cause),
        final_observation=put(trajectory.final_observation, message.tokens),
        final_observation_length=put(trajectory.final_observation_length, message.length),
        final_join=jax.tree.map(put, trajectory.final_join, message.join),
    )
