"""One iteration of reinforcement learning: rollout, filter, advantages, update.

`agentrl train` uses it with the programs of a run, `agentrl compare` with programs over several seeds, and
`agentrl plan` with programs that are compiled but not run. Nothing here reads a clock, a file or a random number.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Key

from agentrl_jax.learner.settings import UpdateSettings
from agentrl_jax.learner.state import TrainState
from agentrl_jax.rollout.trajectory import EpisodeIds, Hints, RolloutSettings, RolloutStats, Trajectory


class IterationPrograms(NamedTuple):
    """The programs of an iteration, compiled or not.

    Attributes:
        rollout: (params, key, ids, settings) -> (trajectory, counters), see `setup.programs.Programs.rollout`.
        update: (state, trajectory, temperature, key, settings, greedy for ReMax, hints) -> (state, metrics). Its first
            half, `learner.batch.make_batch`, filters groups and computes advantages; its second takes gradient steps.
        greedy: as `rollout`, with one episode per group, if the algorithm needs it (ReMax); else None.
        group_size: episodes per group; they are contiguous.
    """

    rollout: Callable[..., tuple[Trajectory, RolloutStats]]
    update: Callable[..., tuple[TrainState, dict[str, jax.Array]]]
    greedy: Callable[..., tuple[Trajectory, RolloutStats]] | None
    group_size: int


class IterationInputs(NamedTuple):
    """The inputs of one iteration besides the state. With `S` seeds, every leaf but settings has a leading axis S.

    `update_key` decides the order of the minibatches; `greedy` is None without a greedy rollout.
    """

    rollout_key: Key[Array, "*S"]
    update_key: Key[Array, "*S"]
    ids: EpisodeIds
    rollout: RolloutSettings
    greedy: RolloutSettings | None
    update: UpdateSettings


class Played(NamedTuple):
    """The episodes and counters of a rollout, those of the greedy rollout if there is one, and the hints of a teacher
    that reads some."""

    trajectory: Trajectory
    stats: RolloutStats
    greedy: Trajectory | None = None
    greedy_stats: RolloutStats | None = None
    hints: Hints | None = None


def iterate(
    state: TrainState, inputs: IterationInputs, programs: IterationPrograms
) -> tuple[TrainState, Played, dict[str, jax.Array]]:
    """Plays episodes with the policy of a state and learns from them; returns also the metrics of the update."""
    played = play(state, inputs, programs)
    state, metrics = learn(state, played, inputs, programs)
    return state, played, metrics


def play(state: TrainState, inputs: IterationInputs, programs: IterationPrograms) -> Played:
    """Plays the episodes of an iteration with the policy of a state."""
    params = state.merged_params()
    trajectory, stats = programs.rollout(params, inputs.rollout_key, inputs.ids, inputs.rollout)
    if programs.greedy is None:
        return Played(trajectory, stats)
    # The ids come from the trajectory, because dynamic sampling may have moved groups to other levels.
    heads = jax.tree.map(lambda x: x[..., :: programs.group_size], trajectory.ids)
    return Played(trajectory, stats, *programs.greedy(params, inputs.rollout_key, heads, inputs.greedy))


def learn(
    state: TrainState, played: Played, inputs: IterationInputs, programs: IterationPrograms
) -> tuple[TrainState, dict[str, jax.Array]]:
    """Returns the state after learning from a rollout, and the metrics of the update. The old state is donated."""
    more: tuple[Any, ...] = () if played.greedy is None else (played.greedy,)
    if played.hints is not None:
        more = played.greedy, played.hints
    temperature = inputs.rollout.temperature
    return programs.update(state, played.trajectory, temperature, inputs.update_key, inputs.update, *more)
