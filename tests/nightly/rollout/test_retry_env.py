import jax
import jax.numpy as jnp
import numpy as np
import toy_agent
from retry_scripts import KEY, LENGTH, check_texts, near_levels, play_scripts, played, retry_env, sure
from toy_rollouts import assert_same, differing

from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.rollout.envs.retry import RetryEnv
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.rollout.trajectory import TRUNCATIONS
from agentrl_jax.setup import build_inputs
from agentrl_jax.text.grammar import ParsedResponse


def test_a_full_context_ends_the_attempts(policy):
    limit = int(sure().prefix_length[0]) + 3 * (sure().observation_tokens + LENGTH)
    trajectory, whole = play_scripts(policy, FULL, context_tokens=limit), play_scripts(policy, FULL)
    full = trajectory.truncation == 1 + TRUNCATIONS.index("context")
    assert full.tolist() == [False, False, True, True, False]
    assert trajectory.success.tolist() == [True, True, False, False, False]
    assert set(trajectory.num_turns[full].tolist()) <= {3, 4}
    np.testing.assert_array_equal(trajectory.num_turns[~full], whole.num_turns[~full])


def test_one_attempt_is_the_plain_episode(compiled, policy):
    ids, settings = near_levels(16), toy_agent.settings(16, horizon=jnp.int32(toy_agent.TURNS))
    env = RetryEnv(toy_agent.BATCHED_ENV, toy_agent.TURNS, 1)
    once = played(policy, env, toy_agent.engine_config(), ids, settings)
    plain, _ = compiled(toy_agent.engine_config())(policy, KEY, ids, settings)
    assert not once.turn.info.pop("attempt").any()
    assert differing(once, plain) == []


def test_a_retry_depends_neither_on_the_batch_nor_on_slots(policy):
    turns, ids = 2 * toy_agent.TURNS, near_levels(16)
    env = retry_env(toy_agent.BATCHED_ENV.tasks, 2, toy_agent.TURNS)
    settings = toy_agent.settings(16, horizon=jnp.int32(turns))
    trajectory = played(policy, env, toy_agent.engine_config(max_turns=turns), ids, settings)
    rows = np.random.default_rng(0).permutation(16)[:12]
    config, some = toy_agent.engine_config(max_turns=turns, slots=4), toy_agent.rows(ids, rows)
    few = played(policy, env, config, some, settings.replace(temperature=settings.temperature[:12]))
    assert_same(few, toy_agent.rows(trajectory, rows))


def test_single_turns_read_the_feedback(policy):
    check_texts(play_scripts(policy, SINGLE_TURN), SINGLE_TURN)


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
