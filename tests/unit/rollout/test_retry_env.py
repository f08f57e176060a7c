import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from retry_scripts import KEY, LENGTH, SAID, SCRIPTS, check_texts, near_levels, play_scripts, played, retry_env, sure
from toy_rollouts import assert_same, differing

from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.rollout.envs.retry import ATTEMPT, RetryEnv
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.rollout.trajectory import TRUNCATIONS
from agentrl_jax.setup import build_inputs
from agentrl_jax.text.grammar import ParsedResponse


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


@pytest.mark.nightly
def test_a_full_context_ends_the_attempts(policy):
    limit = int(sure().prefix_length[0]) + 3 * (sure().observation_tokens + LENGTH)
    trajectory, whole = play_scripts(policy, FULL, context_tokens=limit), play_scripts(policy, FULL)
    full = trajectory.truncation == 1 + TRUNCATIONS.index("context")
    assert full.tolist() == [False, False, True, True, False]
    assert trajectory.success.tolist() == [True, True, False, False, False]
    assert set(trajectory.num_turns[full].tolist()) <= {3, 4}
    np.testing.assert_array_equal(trajectory.num_turns[~full], whole.num_turns[~full])


@pytest.mark.nightly
def test_one_attempt_is_the_plain_episode(compiled, policy):
    ids, settings = near_levels(16), toy_agent.settings(16, horizon=jnp.int32(toy_agent.TURNS))
    env = RetryEnv(toy_agent.BATCHED_ENV, toy_agent.TURNS, 1)
    once = played(policy, env, toy_agent.engine_config(), ids, settings)
    plain, _ = compiled(toy_agent.engine_config())(policy, KEY, ids, settings)
    assert not once.turn.info.pop("attempt").any()
    assert differing(once, plain) == []


@pytest.mark.nightly
def test_a_retry_depends_neither_on_the_batch_nor_on_slots(policy):
    turns, ids = 2 * toy_agent.TURNS, near_levels(16)
    env = retry_env(toy_agent.BATCHED_ENV.tasks, 2, toy_agent.TURNS)
    settings = toy_agent.settings(16, horizon=jnp.int32(turns))
    trajectory = played(policy, env, toy_agent.engine_config(max_turns=turns), ids, settings)
    rows = np.random.default_rng(0).permutation(16)[:12]
    config, some = toy_agent.engine_config(max_turns=turns, slots=4), toy_agent.rows(ids, rows)
    few = played(policy, env, config, some, settings.replace(temperature=settings.temperature[:12]))
    assert_same(few, toy_agent.rows(trajectory, rows))


@pytest.mark.nightly
def test_single_turns_read_the_feedback(policy):
    check_texts(play_scripts(policy, SINGLE_TURN), SINGLE_TURN)


@pytest.mark.nightly
def test_attempts_have_other_noise():
    env, settings, count = retry_env(toy_agent.BATCHED_ENV.tasks, 3, turns=1), toy_agent.settings(64), 64
    ids = build_inputs.episode_ids(group=np.arange(count), member=[0] * count, task=[1] * count, level=[-1] * count)
    up, every = jnp.zeros((count, 2), jnp.int32), jnp.ones(count, bool)
    parsed = ParsedResponse(up, num_valid=jnp.full(count, 2), num_parsed=jnp.full(count, 2), format_ok=every)
    response = empty_response(count, 1)

    @jax.jit
    def heights(key):
        plain, _ = toy_agent.BATCHED_ENV.reset(key, settings, ids)
        _, result, _ = toy_agent.BATCHED_ENV.step(settings, plain, response, parsed, every)
        state, _ = env.reset(key, settings, ids)
        found = []
        for _ in range(3):
            state, news, _ = env.step(settings, state, response, parsed, ~state.solved)
            found.append(news.info["height"])
        return result.info["height"], jnp.stack(found), state.solved

    plain, found, solved = jax.tree.map(np.asarray, heights(KEY))
    np.testing.assert_array_equal(found[0], plain)
    first, second, third = found[:, ~solved]
    assert first.shape[0] > 20
    for a, b in ((first, second), (first, third), (second, third)):
        assert 0.2 < np.mean(a != b) < 0.9
