"""Packs trajectories into the rows that the learner reads.

Shapes: `E` episodes, `T` turns, `L` tokens of a response, `N` rows, `S` tokens of a row, `K` response positions.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.rollout.trajectory import Trajectory


class Sequences(struct.PyTreeNode):
    """Rows of tokens, padded on the right, with the positions of the sampled tokens.

    A response has L positions, so a row has K = (turns of the row) x L; position t * L + i is token i of its turn t.
    """

    tokens: Int[Array, "N S"]
    length: Int[Array, " N"]
    position: Int[Array, "N K"]
    """Index of the sampled token in its row; 1 where there is none."""
    response_mask: Bool[Array, "N K"]
    """The token was sampled from the policy: the loss mask."""
    logprob: Float[Array, "N K"]
    """Behavior log-probability of sampled tokens, else 0."""
    turn: Int[Array, "N K"]
    """Turn of the episode that the response position belongs to."""
    episode: Int[Array, " N"]
    """Row of the trajectory."""


def pack_trajectories(trajectory: Trajectory, context: str, limit: int = 0) -> Sequences:
    """Packs trajectories into rows with exactly the token sequences that the policy saw.

    The context "full" gives one row per episode, with the prompt and all turns; "single_turn" gives one row per turn,
    with the prompt and that turn alone, and no sampled tokens where the turn was not played. The rows of an episode are
    contiguous, so in both contexts [N, K] reshaped to [E, T * L] has the response positions of each episode in the
    order of its turns. `limit` is S, if no row has more tokens; 0 for the largest length that can occur.
    """
    episodes, turns = trajectory.observation_length.shape
    single = context == "single_turn"

    def by_row(x):
        """Per-turn fields [E, T, ...] as [N, turns of a row, ...]."""
        return x.reshape(episodes * turns, 1, *x.shape[2:]) if single else x

    def repeated(x):
        """Per-episode fields [E, ...] as [N, ...]."""
        return jnp.repeat(x, turns, axis=0) if single else x

    def below(length, size):
        return jnp.arange(size) < length[..., None]

    def flat(x):
        return x.reshape(x.shape[0], -1)

    observation, response = by_row(trajectory.observation), by_row(trajectory.response.tokens)
    observation_length = jnp.where(by_row(trajectory.turn_mask), by_row(trajectory.observation_length), 0)
    response_length = by_row(trajectory.response.length)
    prompt, prompt_length = repeated(trajectory.prompt), repeated(trajectory.prompt_length)

    # First with padding inside: the prompt, then observation and response of each turn. Then real tokens move left.
    sampled = below(response_length, response.shape[-1])
    filled = jnp.concatenate([below(observation_length, observation.shape[-1]), sampled], axis=2)
    tokens = jnp.concatenate([prompt, flat(jnp.concatenate([observation, response], axis=2))], axis=1)
    real = jnp.concatenate([below(prompt_length, prompt.shape[1]), flat(filled)], axis=1)
    order = jnp.argsort(~real, axis=1, stable=True)[:, : limit or None]

    ends = prompt_length[:, None] + jnp.cumsum(observation_length + response_length, axis=1)
    starts = ends - response_length
    turn = by_row(jnp.broadcast_to(jnp.arange(turns), (episodes, turns)))
    return Sequences(
        tokens=jnp.take_along_axis(jnp.where(real, tokens, 0), order, axis=1),
        length=jnp.sum(real, axis=1, dtype=jnp.int32),
        position=flat(jnp.where(sampled, starts[..., None] + jnp.arange(response.shape[-1]), 1)),
        response_mask=flat(sampled),
        logprob=flat(jnp.where(sampled, by_row(trajectory.response.logprob), 0.0)),
        turn=flat(jnp.broadcast_to(turn[..., None], response.shape)),
        episode=repeated(jnp.arange(episodes, dtype=jnp.int32)),
    )


class FinalStates(NamedTuple):
    """Contexts at the end of truncated episodes, including the observation that was never answered."""

    tokens: Int[Array, "E S"]
    """The context up to the last observation, padded on the right."""
    position: Int[Array, "E 1"]
    """Index of the token that would come next; 1 where the episode was not truncated."""
    known: Bool[Array, "E 1"]
    """Whether the episode was truncated."""


def final_states(trajectory: Trajectory, context: str, limit: int = 0) -> FinalStates:
    """The final contexts of truncated episodes, in the layout of `pack_trajectories`.

    The last observation may exceed `limit`.
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
