"""One iteration of reinforcement learning: rollout, filter, advantages, update.

`agentrl train` uses it with the programs of a run, `agentrl compare` with programs over several seeds, and
`agentrl plan` with programs that are compiled but not run. Nothing here reads a clock, a file or a random number.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax

from agentrl_jax.learner.settings import UpdateSettings
from agentrl_jax.learner.state import TrainState
from agentrl_jax.rollout.trajectory import EpisodeIds, RolloutSettings, RolloutStats, Trajectory


class IterationPrograms(NamedTuple):
    """The programs of an iteration, compiled or not.

    Attributes:
        rollout: (params, key, ids, settings) -> (trajectory, counters), see `setup.programs.Programs.rollout`.
        update: (state, trajectory, temperature, key, settings, greedy for ReMax) -> (state, metrics). Its first half,
            `learner.batch.make_batch`, filters groups and computes advantages; its second half takes gradient steps.
        greedy: as `rollout`, with one episode per group, if the algorithm needs it (ReMax); else None.
        group_size: episodes per group; they are contiguous.
    """

    rollout: Callable[..., tuple[Trajectory, RolloutStats]]
    update: Callable[..., tuple[TrainState, dict[str, jax.Array]]]
    greedy: Callable[..., tuple[Trajectory, RolloutStats]] | None
    group_size: int


class IterationInputs(NamedTuple):
    """The inputs of one iteration besides the state. With `S` seeds, every leaf but settings has a leading axis S.

    Attributes:
        rollout_key: key[] of the episodes.
        update_key: key[] of the order of the minibatches.
        ids: ids of the E episodes.
        rollout: settings of the rollout.
        greedy: settings of the greedy rollout; None without one.
        update: settings of the update.
    """

    rollout_key: jax.Array
    update_key: jax.Array
    ids: EpisodeIds
    rollout: RolloutSettings
    greedy: RolloutSettings | None
    update: UpdateSettings


class Played(NamedTuple):
    """The rollout of an iteration, before the update.

    Attributes:
        trajectory: E episodes.
        stats: counters of the rollout.
        greedy_stats: counters of the greedy rollout; None without one.
    """

    trajectory: Trajectory
    stats: RolloutStats
    greedy_stats: RolloutStats | None


def iterate(
    state: TrainState,
    inputs: IterationInputs,
    programs: IterationPrograms,
    inspect: Callable[[Played], None] = lambda played: None,
) -> tuple[TrainState, Played, dict[str, jax.Array]]:
    """Plays E episodes with the policy of a state and learns from them.

    Args:
        state: state before the iteration; it is donated to the update.
        inputs: keys, episodes and settings.
        programs: the programs to run.
        inspect: called with the rollout before the update, while the state is still valid; it may raise.

    Returns:
        The new state, the rollout, and the metrics of the update.
    """
    params = state.merged_params()
    trajectory, stats = programs.rollout(params, inputs.rollout_key, inputs.ids, inputs.rollout)
    greedy: tuple[Trajectory, ...] = ()
    greedy_stats = None
    if programs.greedy is not None:
        # The ids come from the trajectory, because dynamic sampling may have moved groups to other levels.
        heads = jax.tree.map(lambda x: x[..., :: programs.group_size], trajectory.ids)
        baseline, greedy_stats = programs.greedy(params, inputs.rollout_key, heads, inputs.greedy)
        greedy = (baseline,)
    played = Played(trajectory, stats, greedy_stats)
    inspect(played)
    state, metrics = programs.update(
        state, trajectory, inputs.rollout.temperature, inputs.update_key, inputs.update, *greedy
    )
    return state, played, metrics
