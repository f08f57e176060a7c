"""One iteration of reinforcement learning: rollout, filter, advantages, update.

`agentrl train` calls it with the programs of a run, `agentrl compare` with programs over several seeds, and
`agentrl plan` with programs that are compiled and not run. Nothing here reads a clock, a file or a random number.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax

from agentrl_jax.learner.settings import UpdateSettings
from agentrl_jax.learner.state import TrainState
from agentrl_jax.rollout.trajectory import EpisodeIds, RolloutSettings, RolloutStats, Trajectory


class IterationPrograms(NamedTuple):
    """What an iteration runs, compiled or not.

    Attributes:
        rollout: (params, key, ids, settings) -> (trajectory, counters), see `setup.programs.Programs.rollout`.
        update: (state, trajectory, temperature, key, settings, greedy for ReMax) -> (state, metrics). Its first half,
            `learner.batch.make_batch`, filters groups and computes advantages; its second half takes gradient steps.
        greedy: as `rollout`, one episode a group, where the learning rule needs it (ReMax); else None.
        group_size: episodes of a group, which are contiguous.
    """

    rollout: Callable[..., tuple[Trajectory, RolloutStats]]
    update: Callable[..., tuple[TrainState, dict[str, jax.Array]]]
    greedy: Callable[..., tuple[Trajectory, RolloutStats]] | None
    group_size: int


class IterationInputs(NamedTuple):
    """What one iteration depends on besides the state. With `S` seeds every leaf but settings has a first axis S.

    Attributes:
        rollout_key: key[] of the episodes.
        update_key: key[] of the order of the minibatches.
        ids: the E episodes.
        rollout: settings of the rollout.
        greedy: settings of the greedy rollout; None without one.
        update: numbers of the update.
    """

    rollout_key: jax.Array
    update_key: jax.Array
    ids: EpisodeIds
    rollout: RolloutSettings
    greedy: RolloutSettings | None
    update: UpdateSettings


class Played(NamedTuple):
    """What has been played before anything is learned from it.

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
        state: before; it is given up (donated) to the update.
        inputs: keys, episodes and settings.
        programs: what is run.
        inspect: looks at what has been played while the state is still the one that played; it may raise.

    Returns:
        The state after, what was played, and the metrics of the update.
    """
    params = state.merged_params()
    trajectory, stats = programs.rollout(params, inputs.rollout_key, inputs.ids, inputs.rollout)
    greedy: tuple[Trajectory, ...] = ()
    greedy_stats = None
    if programs.greedy is not None:
        # The groups of the trajectory: dynamic sampling may have put some on other levels.
        heads = jax.tree.map(lambda x: x[..., :: programs.group_size], trajectory.ids)
        baseline, greedy_stats = programs.greedy(params, inputs.rollout_key, heads, inputs.greedy)
        greedy = (baseline,)
    played = Played(trajectory, stats, greedy_stats)
    inspect(played)
    state, metrics = programs.update(
        state, trajectory, inputs.rollout.temperature, inputs.update_key, inputs.update, *greedy
    )
    return state, played, metrics
