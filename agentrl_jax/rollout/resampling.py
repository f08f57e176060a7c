"""Resampling of uninformative groups on the device: DAPO's dynamic sampling (arXiv 2503.14476, section 3.2).

Shapes: `Gr` groups of `M` members, `E` = Gr x M episodes.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from agentrl_jax.algos import masked
from agentrl_jax.rollout.returns import NamedPart
from agentrl_jax.rollout.trajectory import EpisodeIds, RolloutStats, Trajectory


class Resampling(NamedTuple):
    """How a rollout resamples groups whose members are alike; hashable."""

    rounds: int = 1
    """Most rounds; 1: groups are as they come."""
    parts: tuple[NamedPart, ...] = ()
    """Parts of the returns that are compared."""
    separately: bool = False
    """A group is kept if any part varies, not only their sum."""


ONE_ROUND = Resampling()


def until_informative(
    play: Callable[[EpisodeIds], tuple[Trajectory, RolloutStats]],
    informative: Callable[[Trajectory], Bool[Array, " Gr"]],
    ids: EpisodeIds,
    *,
    group_size: int,
    rounds: int,
    stride: Int[Array, ""] | int,
) -> tuple[Trajectory, RolloutStats]:
    """Plays E episodes on new levels until every group is informative, at most `rounds` times.

    In every later round, the missing groups of a task, uninformative so far, are filled, in order, by the informative
    groups of that task; the other groups of that round are discarded. The returned groups are therefore a biased sample
    of the policy's episodes. For unbiased metrics use the returned `RolloutStats`, which add up over all rounds. Later
    rounds have higher group numbers, hence other levels: each round adds `stride`, which must be larger than any group
    number of `ids`. The rows of a group are contiguous.
    """
    groups = ids.group.shape[0] // group_size
    task = ids.task[::group_size]
    buffer, stats = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(play, ids))

    def unfinished(carry):
        count, _, accepted, _ = carry
        return (count == 0) | ((count < rounds) & ~jnp.all(accepted))

    def play_round(carry):
        count, buffer, accepted, stats = carry
        played, round_stats = play(ids.replace(group=ids.group + count * stride))
        is_informative = informative(played)
        source, found = _match(accepted, is_informative, task)
        source, found = jnp.where(count == 0, jnp.arange(groups), source), jnp.where(count == 0, True, found)
        rows = (source[:, None] * group_size + jnp.arange(group_size)).reshape(-1)
        buffer = masked.where(jnp.repeat(found, group_size), jax.tree.map(lambda x: x[rows], played), buffer)
        accepted = jnp.where(count == 0, is_informative, accepted | found)
        return count + 1, buffer, accepted, jax.tree.map(jnp.add, stats, round_stats)

    start = jnp.int32(0), buffer, jnp.zeros(groups, bool), stats
    _, trajectory, _, stats = jax.lax.while_loop(unfinished, play_round, start)
    return trajectory, stats


def _match(
    accepted: Bool[Array, " Gr"], informative: Bool[Array, " Gr"], task: Int[Array, " Gr"]
) -> tuple[Int[Array, " Gr"], Bool[Array, " Gr"]]:
    """For each group of the batch: the new group that replaces it, and whether there is one.

    The k-th missing group of a task is replaced by the k-th informative new group of that task.
    """
    same = task[:, None] == task
    before = same & (jnp.arange(len(task)) < jnp.arange(len(task))[:, None])
    rank_of_missing, rank_of_new = (jnp.sum(before & wanted, axis=1) for wanted in (~accepted, informative))
    match = same & ~accepted[:, None] & informative & (rank_of_missing[:, None] == rank_of_new)
    return jnp.argmax(match, axis=1), jnp.any(match, axis=1)
