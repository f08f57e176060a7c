"""Plays given actions or responses in the environments of a rollout, and records what a rollout would.

Shapes: `E` episodes, `T` turns, `A` actions and `L` tokens of one turn.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from agentrl_jax.algos import masked
from agentrl_jax.rollout.contexts import Context
from agentrl_jax.rollout.envs.batched_env import BatchedEnv, CompiledEnv
from agentrl_jax.rollout.envs.context_env import in_context
from agentrl_jax.rollout.recording import empty_trajectory, record_truncation
from agentrl_jax.rollout.trajectory import TRUNCATIONS, EpisodeIds, Response, RolloutSettings, Trajectory
from agentrl_jax.text.grammar import ParsedResponse
from agentrl_jax.text.prompt import response as canonical_response


def demonstrate(
    batched_env: CompiledEnv,
    max_response_tokens: int,
    key: jax.Array,
    settings: RolloutSettings,
    ids: EpisodeIds,
    actions: Int[Array, "E T A"],
    *,
    context: Context,
) -> Trajectory:
    """Plays given actions in the canonical response format and records what a rollout would, see `play_responses`.

    Actions are padded with -1; a turn without actions is not played.
    """
    count = jnp.sum(actions >= 0, axis=2)

    def write(task, chosen, count):
        branches = [
            lambda a, n, t=t: canonical_response(t.prompt, a, n, max_tokens=max_response_tokens)
            for t in batched_env.tasks
        ]
        return jax.lax.switch(task, branches, chosen, count)

    by_turn = jax.vmap(write, in_axes=(None, 0, 0))
    tokens, length = jax.vmap(by_turn)(ids.task, jnp.maximum(actions, 0), count)
    parsed = ParsedResponse(actions=actions, num_valid=count, num_parsed=count, format_ok=count > 0)
    return play_responses(batched_env, key, settings, ids, tokens, length * (count > 0), parsed, context=context)


def play_responses(
    batched_env: BatchedEnv,
    key: jax.Array,
    settings: RolloutSettings,
    ids: EpisodeIds,
    tokens: Int[Array, "E T L"],
    length: Int[Array, "E T"],
    parsed: ParsedResponse,
    *,
    context: Context,
    ended: bool = True,
) -> Trajectory:
    """Plays given responses, which have an end-of-turn token if they `ended`, and records what a rollout would.

    An episode ends before its first response of length 0. `parsed` has leaves [E, T, ...], and is unused by an
    environment that parses responses itself. Response tokens count as sampled, with log-probability 0. An episode that
    is not over after its T turns is truncated, as at the horizon of a rollout.
    """
    episodes, turns = length.shape
    joined = in_context(batched_env, context, turns)
    state, message = joined.reset(key, settings, ids)

    def turn(carry, current):
        state, message, playing = carry
        tokens, length, parsed = current
        playing &= length > 0
        nothing = jnp.zeros(tokens.shape, jnp.float32)
        response = Response(tokens=tokens, length=length * playing, logprob=nothing, ended=jnp.full(episodes, ended))
        observation = message.tokens, message.length * playing, message.join, message.overflow & playing
        state, result, following = joined.step(settings, state, response, parsed, playing)
        message = masked.where(playing, following, message)
        over = result.terminated | result.truncated | result.failed
        return (state, message, playing & ~over), (*observation, response, result, playing)

    everyone = jnp.ones(episodes, bool)
    by_turn = jax.tree.map(lambda x: x.swapaxes(0, 1), (tokens, length, parsed))
    (_, message, unfinished), recorded = jax.lax.scan(turn, (state, message, everyone), by_turn, length=turns)
    observation, observation_length, join, overflow, response, result, played = jax.tree.map(
        lambda x: x.swapaxes(0, 1), recorded
    )
    num_turns = jnp.sum(played, axis=1, dtype=jnp.int32)
    cause = jnp.where(jnp.any(result.truncated, axis=1), 1 + TRUNCATIONS.index("actions"), 0)
    cause = jnp.where(unfinished & (num_turns == turns), 1 + TRUNCATIONS.index("turns"), cause)
    trajectory = empty_trajectory(joined, ids, joined.bounds, tokens.shape[2]).replace(
        observation=observation,
        observation_length=observation_length,
        join=join,
        response=response,
        turn=result,
        num_turns=num_turns,
        overflow=jnp.any(overflow, axis=1),
    )
    truncated = (cause > 0) & ~jnp.any(result.terminated | result.failed, axis=1)
    return record_truncation(trajectory, jnp.arange(episodes), message, cause, truncated)
