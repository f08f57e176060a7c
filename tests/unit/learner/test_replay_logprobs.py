"""`algo.mismatch` replay: ratios of exactly 1 and divergences of exactly 0 until the first step; and tis."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
import toy_agent
from replayed import KEY, MODEL, RULE, TEMPERATURE, Iteration, assert_exact, settings
from toy_agent import GROUP_SIZE

from agentrl_jax.config.algo import Replay, Tis
from agentrl_jax.learner.replay_logprobs import with_gradient_of
from agentrl_jax.learner.update import update
from agentrl_jax.models import actor_critic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.packing import pack_trajectories


@pytest.fixture(scope="module")
def iteration():
    return Iteration(1, {})


def test_nothing_has_moved_bit_for_bit(iteration):
    """Two gradient steps with learning rate 0, on the half of the groups that the filter keeps."""
    _, metrics = iteration.learn("replay", lr=0.0, critic_lr=0.0, kl_coef=0.3)
    assert_exact(metrics)
    assert metrics["rollout/parallel_gap_max"] > 0
    assert metrics["rollout/parallel_bit_equal"] < 1
    assert metrics["actor/grad_norm"] > 0
    assert metrics["update/skipped"] == 0


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (None, "give the rollout's EngineConfig"),
        ({"group_size": 2}, "context and group_size"),
        ({"group_size": GROUP_SIZE, "context": "single_turn"}, "context and group_size"),
        ({"group_size": GROUP_SIZE, "slots": 64}, "64 slots for 32 episodes"),
        ({"group_size": GROUP_SIZE, "max_turns": 2}, "cannot be replayed"),
    ],
)
def test_a_rollout_of_another_shape_is_refused(iteration, engine, words):
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(
            functools.partial(
                update,
                model=MODEL,
                config=RULE.replace(mismatch=Replay()),
                tx=made_up.PLAIN,
                shards=Shards(),
                engine=None if engine is None else toy_agent.engine_config(**engine),
            ),
            *(iteration.state, iteration.trajectory, TEMPERATURE, KEY, settings()),
        )


def test_value_of_one_and_gradient_of_the_other():
    value, source = jnp.float32([-1.0000001, -3e-8]), jnp.float32([-7.3, -2.1])
    out, pull = jax.vjp(lambda v, s: with_gradient_of(v, s) * 2, value, source)
    np.testing.assert_array_equal(out, 2 * value)
    of_value, of_source = pull(jnp.ones(2))
    assert (np.asarray(of_value) == 0).all()
    assert (np.asarray(of_source) == 2).all()


def test_truncated_weights_stand_before_the_policy_gradient():
    """At the first step the gradient is that of -mean(weight x advantage x logprob), with weights from NumPy."""
    cap = 1.25
    model = dataclasses.replace(made_up.MODEL, critic="none")
    rule = made_up.BASE.replace(mismatch=Tis(cap=cap), **made_up.GRPO)
    start, trajectory = made_up.fresh_state(model), made_up.TRAJECTORY
    learn = functools.partial(update, model=model, config=rule, tx=made_up.PLAIN, shards=Shards())
    numbers = made_up.settings(entropy_coef=0.0, lr=1.0)
    state, metrics = jax.jit(learn)(start, trajectory, made_up.ONES, KEY, numbers)

    rows = pack_trajectories(trajectory, "full")
    sampled = np.asarray(rows.response_mask)

    def score(policy):
        return actor_critic.logprobs({"policy": policy}, model, rows.tokens, rows.position, made_up.ONES)

    own = jax.jit(score)(start.params["policy"])
    ratio = np.exp(np.asarray(own, np.float64) - np.asarray(rows.logprob))
    weight = np.minimum(ratio, cap)
    assert 0.1 < np.mean(ratio[sampled] > cap) < 0.9
    assert metrics["rollout/importance_weight_mean"] == pytest.approx(weight[sampled].mean(), rel=1e-5)
    assert metrics["rollout/importance_truncated"] == pytest.approx(np.mean(ratio[sampled] > cap))
    assert metrics["rollout/logprob_mean"] == pytest.approx(np.asarray(rows.logprob)[sampled].mean(), rel=1e-5)
    assert metrics["rollout/logprob_gap_mean"] == pytest.approx(np.abs(np.log(ratio))[sampled].mean(), rel=1e-4)
    assert metrics["actor/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["actor/clip_fraction"] == 0  # ratios start from the learner's own log-probabilities

    t = jax.tree.map(np.asarray, trajectory)
    scores = (t.turn.reward - 0.1 * t.turn.format_error).sum(axis=1).reshape(made_up.GROUPS, made_up.GROUP_SIZE)
    advantage = (scores - scores.mean(1, keepdims=True)) / (scores.std(1, ddof=1, keepdims=True) + 1e-6)
    factor = weight * advantage.reshape(-1, 1) / np.sum(t.response.length)

    def objective(policy):
        return jnp.sum(jnp.where(rows.response_mask, score(policy) * factor, 0.0))

    expected = jax.jit(jax.grad(objective))(start.params["policy"])
    found = jax.tree.map(jnp.subtract, state.params, start.params)["policy"]
    made_up.assert_close(expected, found, 1e-4)
