import jax.numpy as jnp
import numpy as np
import toy_agent
from retry_scripts import KEY, LENGTH, check_texts, near_levels, play_scripts, played, retry_env, sure
from toy_rollouts import assert_same, differing

from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.rollout.envs.retry import RetryEnv
from agentrl_jax.rollout.trajectory import TRUNCATIONS


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
