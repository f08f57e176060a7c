import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from made_up import EPISODES, GROUP_SIZE, GROUPS, make_trajectory

from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.resampling import Resampling, until_informative
from agentrl_jax.rollout.trajectory import RolloutStats
from agentrl_jax.setup.programs import Programs

STRIDE = 10
"""Of group numbers between rounds."""


def rounds_of(varied):
    made = []
    for number, groups in enumerate(varied):
        trajectory = make_trajectory(number)
        rewards = np.array(trajectory.turn.reward)
        for group in range(GROUPS):
            if group not in groups:
                rewards[group * GROUP_SIZE : (group + 1) * GROUP_SIZE] = 0.0
        made.append(trajectory.replace(turn=trajectory.turn.replace(reward=jnp.asarray(rewards))))
    return made


@jax.jit
def run(rounds):
    """Plays the rounds, given with a leading axis, until all groups of the two tasks (0, 1, 0, 1) vary."""
    bound = rounds.num_turns.shape[0]
    ids = rounds.ids.replace(group=rounds.ids.group[0], member=rounds.ids.member[0], level=rounds.ids.level[0])
    ids = ids.replace(task=ids.group % 2)

    def play(these):
        number = these.group[0] // STRIDE
        counts = {field.name: jnp.int32(0) for field in dataclasses.fields(RolloutStats)}
        stats = RolloutStats(**counts | {"episodes": jnp.int32(EPISODES), "rounds": jnp.int32(1)})
        return jax.tree.map(lambda x: x[number], rounds).replace(ids=these), stats

    def informative(played):
        return jnp.ptp(played.returns.reshape(-1, GROUP_SIZE), axis=1) > 0

    return until_informative(play, informative, ids, group_size=GROUP_SIZE, rounds=bound, stride=STRIDE)


@pytest.mark.parametrize(
    ("varied", "sources", "played"),
    [
        # The only new group of a task fills its first missing one, and one of the other task is of no use to it.
        ([[0], [2, 3], [1]], [(0, 0), (1, 3), (1, 2), (2, 1)], 3),
        ([[], [0, 2], [1, 2, 3]], [(1, 0), (2, 1), (1, 2), (2, 3)], 3),
        ([[0, 1, 2], [2, 0], [0]], [(0, 0), (0, 1), (0, 2), (0, 3)], 3),
        ([[0, 1, 2], [1], []], [(0, 0), (0, 1), (0, 2), (1, 1)], 2),
        ([[0, 1, 2, 3], [], []], [(0, 0), (0, 1), (0, 2), (0, 3)], 1),
        ([[1, 3], [2], [0, 2]], [(1, 2), (0, 1), (2, 0), (0, 3)], 3),
    ],
    ids=str,
)
def test_missing_groups_are_filled_in_their_order(varied, sources, played):
    """The k-th missing group of a task by the k-th informative new one of that task; at most three rounds."""
    rounds = rounds_of(varied)
    found, stats = run(jax.tree.map(lambda *x: jnp.stack(x), *rounds))
    assert (int(stats.rounds), int(stats.episodes)) == (played, played * EPISODES)
    for place, (number, group) in enumerate(sources):
        mine, theirs = (slice(x * GROUP_SIZE, (x + 1) * GROUP_SIZE) for x in (place, group))
        np.testing.assert_array_equal(found.response.tokens[mine], rounds[number].response.tokens[theirs])
        np.testing.assert_array_equal(found.ids.group[mine], number * STRIDE + group)
        np.testing.assert_array_equal(found.ids.task[mine], place % 2)


def test_host_environments_play_one_round():
    programs, batched_env = Programs(make_mesh(1)), object.__new__(HostEnv)
    with pytest.raises(ValueError, match="dynamic_sampling"):
        programs.rollout("rollout", toy_agent.MODEL, batched_env, toy_agent.engine_config(), resampling=Resampling(2))
