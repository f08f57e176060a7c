import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from retry_scripts import KEY, SAID, SCRIPTS, check_texts, play_scripts

from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.retry import ATTEMPT
from agentrl_jax.rollout.trajectory import TRUNCATIONS


@pytest.fixture(scope="module")
def scripted(policy):
    return play_scripts(policy, FULL, slots=2)


def attempts_of(trajectory, row):
    return trajectory.turn.info[ATTEMPT][row, : trajectory.num_turns[row]].astype(int).tolist()


def test_a_failed_attempt_is_repeated_until_one_succeeds(scripted):
    check_texts(scripted, FULL)
    assert scripted.num_turns.tolist() == list(map(len, SAID))
    for row, attempts in enumerate(SCRIPTS.values()):
        assert attempts_of(scripted, row) == [n for n, turns in enumerate(attempts) for _ in turns]
    assert scripted.success.tolist() == [True, True, True, False, False]
    # Success is that of the last turn alone: an attempt that is repeated has failed.
    assert scripted.turn.success.sum() == 3
    # At the engine's horizon, and before it.
    assert scripted.truncation.tolist() == [0, 0, 0] + [1 + TRUNCATIONS.index("actions")] * 2


def test_every_attempt_begins_on_the_same_level(scripted):
    for row in range(len(SCRIPTS)):
        numbers = attempts_of(scripted, row)
        firsts = [numbers.index(number) for number in sorted(set(numbers))]
        hashes = scripted.turn.state_hash[row, firsts]
        np.testing.assert_array_equal(hashes, np.broadcast_to(hashes[0], hashes.shape))


def test_limits_count_within_an_attempt(scripted):
    actions = scripted.turn.actions
    row = list(SCRIPTS).index("solved by the last turn")
    assert (actions[row] >= 0).sum(axis=1).tolist() == [1, 1, 1, 1, 0, 2]
    row = list(SCRIPTS).index("short attempts")
    assert (actions[row] >= 0).sum(axis=1).tolist() == [2, 2, 0, 0, 0, 0]


def test_an_attempt_has_the_noise_of_its_number(monkeypatch):
    env, settings, ids = toy_agent.BATCHED_ENV, toy_agent.settings(4), toy_agent.mixed_ids(4, 1)
    monkeypatch.setattr(CompiledEnv, "_messages", lambda *_: None)
    start, _ = env.reset(KEY, settings, ids)
    every, nothing = jnp.ones(4, bool), jnp.zeros(4)
    second, _ = env.restart_level(settings, start, start, every, nothing, every)
    third, _ = env.restart_level(settings, second, start, every, nothing, every)
    keys = {tuple(jax.random.key_data(state.noise_key).ravel().tolist()) for state in (start, second, third)}
    assert len(keys) == 3
    chex.assert_trees_all_equal(second.envs, start.envs)
