"""Packs trajectories into the rows that the learner reads.

Shapes: `E` episodes, `T` turns, `L` tokens of a response, `N` rows, `S` tokens of a row, `K` response positions.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Shaped

from agentrl_jax.rollout.contexts import Context
from agentrl_jax.rollout.recall import compact, first_read, recalled_parts
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


class Layout(struct.PyTreeNode):
    """Which turns are sampled in which row: `Z` rows an episode, one for each segment, with up to `U` turns each."""

    turn: Int[Array, "E Z U"] | None
    """Numbers of the turns, T where there is none. None: one row has all turns, or each row has one."""
    turns: int = struct.field(pytree_node=False)
    """T"""
    shape: tuple[int, int] = struct.field(pytree_node=False)
    """Z and U."""

    def by_row(self, x: Shaped[Array | np.ndarray, "E T *rest"]) -> Shaped[Array | np.ndarray, "N U *rest"]:
        """Fields of turns by row; 0 where there is no turn."""
        if self.turn is None:
            return x.reshape(-1, self.shape[1], *x.shape[2:])
        found = jax.vmap(lambda x, turn: x.at[turn].get(mode="fill", fill_value=0))(x, self.turn)
        return found.reshape(-1, *found.shape[2:])

    def of_rows(self, x: Shaped[Array, "E S"]) -> Shaped[Array, "N K"]:
        """Values of the response positions of episodes, in the order of their turns, as those of rows."""
        by_turn = x.reshape(len(x), self.turns, -1)
        return jnp.reshape(self.by_row(by_turn), (-1, self.shape[1] * by_turn.shape[2]))

    def of_episodes(self, x: Shaped[Array, "N K"]) -> Shaped[Array, "E S"]:
        """The inverse of `of_rows`; 0 where no row has the turn."""
        rows, sampled = self.shape
        episodes = len(x) // rows
        if self.turn is None:
            return x.reshape(episodes, -1)
        values = x.reshape(episodes, rows * sampled, -1)
        empty = jnp.zeros((episodes, self.turns, values.shape[2]), x.dtype)
        put = jax.vmap(lambda empty, turn, values: empty.at[turn].set(values, mode="drop"))
        return put(empty, self.turn.reshape(episodes, -1), values).reshape(episodes, -1)

    def place(self, turn: Int[Array, " E"]) -> tuple[Int[Array, " E"], Int[Array, " E"]]:
        """The row that samples a turn of each episode, and its number in the row."""
        sampled, first = self.shape[1], jnp.arange(len(turn)) * self.shape[0]
        if self.turn is None:
            return (first, turn) if self.shape[0] == 1 else (first + turn // sampled, turn % sampled)
        found = jnp.argmax((self.turn == turn[:, None, None]).reshape(len(turn), -1), axis=1)
        return first + found // sampled, found % sampled


def layout(trajectory: Trajectory, context: Context) -> Layout:
    """The rows of the segments of a trajectory, within the bounds of its context."""
    turns = trajectory.observation_length.shape[1]
    bounds = context.bounds(turns)
    shape = bounds.segments, bounds.sampled
    if bounds.never_restarts or bounds.always_restarts:
        return Layout(None, turns, shape)
    segment = jnp.cumsum(trajectory.join.restart & trajectory.turn_mask, axis=1)
    here = segment[:, None] == jnp.arange(bounds.segments)[:, None]
    first = jnp.where(jnp.any(here, axis=2), jnp.argmax(here, axis=2), turns)
    turn = first[..., None] + jnp.arange(bounds.sampled)
    of_turn = jax.vmap(lambda segment, turn: segment.at[turn].get(mode="fill", fill_value=-1))(segment, turn)
    return Layout(jnp.where(of_turn == jnp.arange(bounds.segments)[:, None], turn, turns), turns, shape)


def pack_trajectories(trajectory: Trajectory, context: Context, limit: int = 0) -> Sequences:
    """Packs trajectories into rows with exactly the token sequences that the policy saw.

    Every segment is a row (see `contexts`): the prompt, what the segment reads again, then message and response of each
    of its turns. There are as many rows as the context's bounds allow, those of an episode contiguous; a row without a
    turn has no sampled tokens. `Layout` leads from the response positions of rows to those of episodes and back.
    `limit` is S, if no row has more tokens; 0 for the largest length that can occur.
    """
    episodes, turns = trajectory.observation_length.shape
    bounds, rows = context.bounds(turns), layout(trajectory, context)
    by_row = rows.by_row

    def repeated(x):
        """Per-episode fields [E, ...] as [N, ...]."""
        return x if rows.shape[0] == 1 else jnp.repeat(x, rows.shape[0], axis=0)

    def below(length, size):
        return jnp.arange(size) < length[..., None]

    def flat(x):
        return x.reshape(x.shape[0], -1)

    observation, response = by_row(trajectory.observation), by_row(trajectory.response.tokens)
    observation_length = by_row(jnp.where(trajectory.turn_mask, trajectory.observation_length, 0))
    response_length = by_row(trajectory.response.length)
    prompt, prompt_length = repeated(trajectory.prompt), repeated(trajectory.prompt_length)
    episode = repeated(jnp.arange(episodes, dtype=jnp.int32))

    # First with padding inside: the prompt, what is read again, then observation and response of each turn.
    sampled = below(response_length, response.shape[-1])
    read = below(observation_length, observation.shape[-1])
    tokens, real, before = [prompt], [below(prompt_length, prompt.shape[1])], prompt_length
    if not (bounds.never_restarts or context.fresh):
        join = jax.tree.map(lambda x: by_row(x)[:, 0], trajectory.join)
        # A row without a turn reads nothing.
        join = join.replace(restart=join.restart & (observation_length[:, 0] > 0))
        read &= (jnp.arange(rows.shape[1]) > 0)[:, None] | ~below(first_read(join), observation.shape[-1])[:, None]
        if join.recall is not None:
            parts = recalled_parts(trajectory, episode, join)
            tokens, real = [*tokens, flat(parts.tokens)], [*real, flat(parts.real)]
            before = before + jnp.sum(parts.real, axis=(1, 2), dtype=jnp.int32)
        observation_length = jnp.sum(read, axis=2, dtype=jnp.int32)
    tokens.append(flat(jnp.concatenate([observation, response], axis=2)))
    real.append(flat(jnp.concatenate([read, sampled], axis=2)))
    longest = prompt.shape[1] + bounds.longest * (observation.shape[-1] + response.shape[-1])

    ends = before[:, None] + jnp.cumsum(observation_length + response_length, axis=1)
    starts = ends - response_length
    turn = by_row(jnp.broadcast_to(jnp.arange(turns), (episodes, turns)))
    is_real = jnp.concatenate(real, axis=1)
    return Sequences(
        tokens=compact(jnp.concatenate(tokens, axis=1), is_real, limit or longest),
        length=jnp.sum(is_real, axis=1, dtype=jnp.int32),
        position=flat(jnp.where(sampled, starts[..., None] + jnp.arange(response.shape[-1]), 1)),
        response_mask=flat(sampled),
        logprob=flat(jnp.where(sampled, by_row(trajectory.response.logprob), 0.0)),
        turn=flat(jnp.broadcast_to(turn[..., None], response.shape)),
        episode=episode,
    )


def context_ends(trajectory: Trajectory, context: Context) -> Int[Array, "E T"]:
    """Tokens of the context of each turn, its response included; at most 1 where nothing was sampled."""
    rows = pack_trajectories(trajectory, context)
    ends = jnp.where(rows.response_mask, rows.position + 1, 1)
    by_turn = layout(trajectory, context).of_episodes(ends)
    return jnp.max(by_turn.reshape(*trajectory.observation_length.shape, -1), axis=2)


class FinalStates(NamedTuple):
    """Contexts at the end of truncated episodes, including the observation that was never answered."""

    tokens: Int[Array, "E S"]
    """The context up to the last observation, padded on the right."""
    position: Int[Array, "E 1"]
    """Index of the token that would come next; 1 where the episode was not truncated."""
    known: Bool[Array, "E 1"]
    """Whether the episode was truncated."""


def final_states(trajectory: Trajectory, context: Context, limit: int = 0) -> FinalStates:
    """The final contexts of truncated episodes, in the layout of `pack_trajectories`.

    The last observation may exceed `limit`.
    """
    turns = trajectory.observation_length.shape[1]
    known = trajectory.final_observation_length > 0
    here = (jnp.arange(turns + 1) == trajectory.num_turns[:, None]) & known[:, None]

    def longer(x, final=None):
        """Fields of turns [E, T, ...] with one more, whose observation was read but not answered."""
        padded = jnp.pad(x, [(0, 0), (0, 1)] + [(0, 0)] * (x.ndim - 2))
        if final is None:
            return padded
        return jnp.where(here.reshape(here.shape + (1,) * (x.ndim - 2)), final[:, None], padded)

    unanswered = trajectory.replace(
        observation=longer(trajectory.observation, trajectory.final_observation),
        observation_length=longer(trajectory.observation_length, trajectory.final_observation_length),
        join=jax.tree.map(longer, trajectory.join, trajectory.final_join),
        response=jax.tree.map(longer, trajectory.response),
        turn=jax.tree.map(longer, trajectory.turn),
        num_turns=trajectory.num_turns + known,
    )
    longest = limit + trajectory.final_observation.shape[-1] if limit else 0
    rows = pack_trajectories(unanswered, context, longest)
    number, _ = layout(unanswered, context).place(jnp.minimum(trajectory.num_turns, turns))
    position = jnp.where(known, rows.length[number], 1)
    return FinalStates(rows.tokens[number], position[:, None], known[:, None])
