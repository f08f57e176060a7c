"""Groups that teach nothing are drawn anew, on the device: DAPO's dynamic sampling (arXiv 2503.14476, section 3.2).

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
    """Plays E episodes again, on new levels, until every group is an informative one, or `rounds` times.

    A group that is not informative gives its place to one of the same task from a later round, the first that comes;
    the others of that round are thrown away. Which groups come out is thus no fair draw of the policy's episodes:
    what these say about the policy is in the counters and sums, which add up over all rounds.

    Args:
        play: the rollout of given episodes, with its counters and sums.
        informative: which groups of a trajectory teach something, bool[Gr].
        ids: episodes of the first round; the others have higher numbers of their groups, hence other levels.
        group_size: M; the rows of a group are contiguous.
        rounds: bound, at least 1, static.
        stride: by what the groups' numbers grow each round; more than any of them.

    Returns:
        A trajectory of Gr groups, where places that were never filled hold groups of the first round; and the sums of
        all rounds' counters and sums.
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
    """For each place i32[Gr] which new group goes there, and bool[Gr] whether one does.

    The k-th empty place of a task takes the k-th good group of that task.
    """
    same = task[:, None] == task
    before = same & (jnp.arange(len(task)) < jnp.arange(len(task))[:, None])
    rank_of_place, rank_of_group = (jnp.sum(before & wanted, axis=1) for wanted in (~filled, good))
    match = same & ~filled[:, None] & good & (rank_of_place[:, None] == rank_of_group)
    return jnp.argmax(match, axis=1), jnp.any(match, axis=1)
