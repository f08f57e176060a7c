"""Resampling of uninformative groups on the device: DAPO's dynamic sampling (arXiv 2503.14476, section 3.2).

Shapes: `Gr` groups of `M` members, `E` = Gr x M episodes.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from agentrl_jax.algos import masked
from agentrl_jax.rollout.trajectory import EpisodeIds, RolloutStats, Trajectory

Play = Callable[[EpisodeIds], tuple[Trajectory, RolloutStats]]


def until_informative(
    play: Play,
    informative: Callable[[Trajectory], jax.Array],
    ids: EpisodeIds,
    *,
    group_size: int,
    rounds: int,
    stride: jax.Array | int,
) -> tuple[Trajectory, RolloutStats]:
    """Plays E episodes on new levels until every group is informative, at most `rounds` times.

    An uninformative group is replaced by the first informative group of the same task from a later round; the other
    groups of that round are discarded. The returned groups are therefore a biased sample of the policy's episodes.
    For unbiased metrics use the counters and sums, which add up over all rounds.

    Args:
        play: the rollout of given episodes, with its counters and sums.
        informative: which groups of a trajectory are informative, bool[Gr].
        ids: episodes of the first round; later rounds have higher group numbers, hence other levels.
        group_size: M; the rows of a group are contiguous.
        rounds: most rounds, at least 1 (static).
        stride: added to the group numbers each round; larger than any of them.

    Returns:
        A trajectory of Gr groups (a group that was never replaced is the one of the first round), and the counters
        and sums, added up over all rounds.
    """
    groups = ids.group.shape[0] // group_size
    task = ids.task[::group_size]
    shapes = jax.eval_shape(play, ids)
    buffer, stats = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def again(carry):
        count, _, filled, _ = carry
        return (count == 0) | ((count < rounds) & ~jnp.all(filled))

    def another(carry):
        count, buffer, filled, stats = carry
        drawn, of_round = play(ids.replace(group=ids.group + count * stride))
        good = informative(drawn)
        source, found = _places(filled, good, task)
        source, found = (jnp.where(count == 0, first, x) for first, x in ((jnp.arange(groups), source), (True, found)))
        rows = (source[:, None] * group_size + jnp.arange(group_size)).reshape(-1)
        buffer = masked.where(jnp.repeat(found, group_size), jax.tree.map(lambda x: x[rows], drawn), buffer)
        filled = jnp.where(count == 0, good, filled | found)
        return count + 1, buffer, filled, jax.tree.map(jnp.add, stats, of_round)

    start = jnp.int32(0), buffer, jnp.zeros(groups, bool), stats
    _, trajectory, _, stats = jax.lax.while_loop(again, another, start)
    return trajectory, stats


def _places(filled: jax.Array, good: jax.Array, task: jax.Array) -> tuple[jax.Array, jax.Array]:
    """For each position in the batch: i32[Gr] the new group that fills it, and bool[Gr] whether there is one.

    The k-th unfilled position of a task takes the k-th informative group of that task.
    """
    same = task[:, None] == task
    before = same & (jnp.arange(len(task)) < jnp.arange(len(task))[:, None])
    rank_of_place, rank_of_group = (jnp.sum(before & wanted, axis=1) for wanted in (~filled, good))
    match = same & ~filled[:, None] & good & (rank_of_place[:, None] == rank_of_group)
    return jnp.argmax(match, axis=1), jnp.any(match, axis=1)
