"""Resampling of uninformative groups on the device: DAPO's dynamic sampling (arXiv 2503.14476, section 3.2).

Shapes: `Gr` groups of `M` members, `E` = Gr x M episodes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from agentrl_jax.algos import masked
from agentrl_jax.rollout.trajectory import EpisodeIds, RolloutStats, Trajectory


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

    An uninformative group is replaced by the first informative group of the same task from a later round; the other
    groups of that round are discarded. The returned groups are therefore a biased sample of the policy's episodes.
    For unbiased metrics use the counters and sums, which add up over all rounds. Later rounds have higher group
    numbers, hence other levels: each round adds `stride`, which must be larger than any group number of `ids`. The rows
    of a group are contiguous.
    """
    groups = ids.group.shape[0] // group_size
    task = ids.task[::group_size]
    buffer, stats = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(play, ids))

    def unfinished(carry):
        count, _, filled, _ = carry
        return (count == 0) | ((count < rounds) & ~jnp.all(filled))

    def play_round(carry):
        count, buffer, filled, stats = carry
        played, of_round = play(ids.replace(group=ids.group + count * stride))
        good = informative(played)
        source, found = _match(filled, good, task)
        source, found = jnp.where(count == 0, jnp.arange(groups), source), jnp.where(count == 0, True, found)
        rows = (source[:, None] * group_size + jnp.arange(group_size)).reshape(-1)
        buffer = masked.where(jnp.repeat(found, group_size), jax.tree.map(lambda x: x[rows], played), buffer)
        filled = jnp.where(count == 0, good, filled | found)
        return count + 1, buffer, filled, jax.tree.map(jnp.add, stats, of_round)

    start = jnp.int32(0), buffer, jnp.zeros(groups, bool), stats
    _, trajectory, _, stats = jax.lax.while_loop(unfinished, play_round, start)
    return trajectory, stats


def _match(
    filled: Bool[Array, " Gr"], good: Bool[Array, " Gr"], task: Int[Array, " Gr"]
) -> tuple[Int[Array, " Gr"], Bool[Array, " Gr"]]:
    """For each group of the batch: the new group that replaces it, and whether there is one.

    The k-th unfilled group of a task is replaced by the k-th informative new group of that task.
    """
    same = task[:, None] == task
    before = same & (jnp.arange(len(task)) < jnp.arange(len(task))[:, None])
    rank_of_unfilled, rank_of_new = (jnp.sum(before & wanted, axis=1) for wanted in (~filled, good))
    match = same & ~filled[:, None] & good & (rank_of_unfilled[:, None] == rank_of_new)
    return jnp.argmax(match, axis=1), jnp.any(match, axis=1)
