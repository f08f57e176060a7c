"""Packs trajectories into the rows that the learner reads.

Shapes: `E` episodes, `T` turns, `L` tokens of a response, `N` rows, `S` tokens of a row, `K` response positions.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from agentrl_jax.rollout.trajectory import Trajectory


class Sequences(struct.PyTreeNode):
    """Rows of tokens, padded on the right, with the positions of the sampled tokens.

    A response has L positions, so a row has K = (turns of the row) x L; position t * L + i is token i of its turn t.

    Attributes:
        tokens: i32[N, S].
        length: i32[N] tokens of each row.
        position: i32[N, K] index of the sampled token in its row; 1 where there is none.
        response_mask: bool[N, K] the token was sampled from the policy: the loss mask.
        logprob: f32[N, K] behavior log-probability of sampled tokens, else 0.
        turn: i32[N, K] turn of the episode that the response position belongs to.
        episode: i32[N] row of the trajectory.
    """

    tokens: jax.Array
    length: jax.Array
    position: jax.Array
    response_mask: jax.Array
    logprob: jax.Array
    turn: jax.Array
    episode: jax.Array


def pack_trajectories(trajectory: Trajectory, context: str, limit: int = 0) -> Sequences:
    """Packs trajectories into rows with exactly the token sequences that the policy saw.

    Args:
        trajectory: E episodes.
        context: "full": one row per episode, with the prompt and all turns. "single_turn": one row per turn, with the
            prompt and that turn alone; turns that were not played give rows without sampled tokens.
        limit: S, if no row has more tokens; 0 for the largest length that can occur.

    Returns:
        `Sequences` with N = E or E * T rows; the rows of an episode are contiguous, so in both contexts [N, K] reshaped
        to [E, T * L] has the response positions of each episode in the order of its turns.
    """
    episodes, turns = trajectory.observation_length.shape
    single = context == "single_turn"

    def rows(x):
        """Per-turn fields [E, T, ...] as [N, turns of a row, ...]."""
        return x.reshape(episodes * turns, 1, *x.shape[2:]) if single else x

    def per_row(x):
        return jnp.repeat(x, turns, axis=0) if single else x

    observation, response = rows(trajectory.observation), rows(trajectory.response.tokens)
    observation_length, response_length = rows(trajectory.observation_length), rows(trajectory.response.length)
    played = rows(trajectory.turn_mask)
    observation_length = jnp.where(played, observation_length, 0)
    prompt, prompt_length = per_row(trajectory.prompt), per_row(trajectory.prompt_length)

    def below(limit, size):
        return jnp.arange(size) < limit[..., None]

    def flat(x):
        return x.reshape(x.shape[0], -1)

    # First with padding inside: the prompt, then observation and response of each turn. Then real tokens move left.
    parts = jnp.concatenate([observation, response], axis=2)
    drawn = below(response_length, response.shape[-1])
    filled = jnp.concatenate([below(observation_length, observation.shape[-1]), drawn], axis=2)
    tokens = jnp.concatenate([prompt, flat(parts)], axis=1)
    kept = jnp.concatenate([below(prompt_length, prompt.shape[1]), flat(filled)], axis=1)
    order = jnp.argsort(~kept, axis=1, stable=True)[:, : limit or None]

    ends = prompt_length[:, None] + jnp.cumsum(observation_length + response_length, axis=1)
    first = ends - response_length
    slots = jnp.arange(response.shape[-1])
    numbers = jnp.broadcast_to(jnp.arange(turns), (episodes, turns))
    return Sequences(
        tokens=jnp.take_along_axis(jnp.where(kept, tokens, 0), order, axis=1),
        length=jnp.sum(kept, axis=1, dtype=jnp.int32),
        position=flat(jnp.where(drawn, first[..., None] + slots, 1)),
        response_mask=flat(drawn),
        logprob=flat(jnp.where(drawn, rows(trajectory.response.logprob), 0.0)),
        turn=flat(jnp.broadcast_to(rows(numbers)[..., None], response.shape)),
        episode=per_row(jnp.arange(episodes, dtype=jnp.int32)),
    )


class FinalStates(NamedTuple):
    """Contexts at the end of truncated episodes, including the observation that was never answered.

    Attributes:
        tokens: i32[E, S] the context up to the last observation, padded on the right.
        position: i32[E, 1] index of the token that would come next; 1 where the episode was not truncated.
        known: bool[E, 1] whether the episode was truncated.
    """

    tokens: jax.Array
    position: jax.Array
    known: jax.Array


def final_states(trajectory: Trajectory, context: str, limit: int = 0) -> FinalStates:
    """The final contexts of truncated episodes, in the same layout as the rows of `pack_trajectories`.

    Args:
        trajectory: E episodes.
        context: see `pack_trajectories`.
        limit: see `pack_trajectories`; the last observation may exceed it.
    """
    turns = trajectory.observation_length.shape[1]
    known = trajectory.final_observation_length > 0
    # One more turn: its observation was read but not answered.
    longer = jax.tree.map(
        lambda x: jnp.pad(x, [(0, 0), (0, 1)] + [(0, 0)] * (x.ndim - 2)),
        {name: getattr(trajectory, name) for name in ("observation", "observation_length", "response", "turn")},
    )
    here = (jnp.arange(turns + 1) == trajectory.num_turns[:, None]) & known[:, None]
    final, final_length = trajectory.final_observation[:, None], trajectory.final_observation_length[:, None]
    longer["observation"] = jnp.where(here[..., None], final, longer["observation"])
    longer["observation_length"] = jnp.where(here, final_length, longer["observation_length"])
    unanswered = trajectory.replace(**longer, num_turns=trajectory.num_turns + known)
    rows = pack_trajectories(unanswered, context, limit + final.shape[-1] if limit else 0)
    number = jnp.arange(len(known))
    if context == "single_turn":
        number = number * (turns + 1) + jnp.minimum(trajectory.num_turns, turns)
    position = jnp.where(known, rows.length[number], 1)
    return FinalStates(rows.tokens[number], position[:, None], known[:, None])
