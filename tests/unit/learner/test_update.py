"""Two whole updates against the same step written out: rewards, filter, advantages, weights, minibatches, losses."""

import dataclasses
import functools

import algos_oracles as oracles
import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
import toy_agent
from made_up import BASE, EPISODES, GROUP_SIZE, GROUPS, KEY, MODEL, ONES, SAID, TRAJECTORY, assert_close, settings

from agentrl_jax.algos import losses
from agentrl_jax.config.advantages import Gae, Grpo
from agentrl_jax.config.algo import FixedKl
from agentrl_jax.config.filters import FractionFilter
from agentrl_jax.config.mismatch import NoCorrection, Tis
from agentrl_jax.config.objectives import PolicyGradient, Ppo
from agentrl_jax.learner import update as updates
from agentrl_jax.learner.batch import Batch
from agentrl_jax.learner.replay_logprobs import Replayer
from agentrl_jax.learner.row_scores import RowScores
from agentrl_jax.learner.update import update
from agentrl_jax.models import actor_critic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.rollout.packing import pack_trajectories

FAILED = [1, 5, 11, 14]
"""An episode of each group, whose environment failed."""
CHOSEN = TRAJECTORY.replace(
    turn=TRAJECTORY.turn.replace(failed=TRAJECTORY.turn.failed.at[jnp.array(FAILED), 0].set(True))
)
ROWS = jax.jit(pack_trajectories, static_argnums=1)(CHOSEN, FULL)
VALID = ~np.isin(np.arange(EPISODES), FAILED)
NUMBERS = {"format_penalty": -0.1, "overlong_buffer": 0.4, "overlong_penalty": 0.5, "entropy_coef": 0.3, "lr": 0.1}


@functools.partial(jax.jit, static_argnums=1)
def scored(params, model):
    return actor_critic.score_tokens(params, model, ROWS.tokens, ROWS.position, ONES)


def turn_rewards():
    t = jax.tree.map(np.asarray, CHOSEN)
    played = np.arange(made_up.TURNS) < t.num_turns[:, None]
    return np.where(played, t.turn.reward - 0.1 * t.turn.format_error - 0.5 * overlong(), 0.0)


def overlong():
    """A response of 5 tokens pays all, one of 4 a half."""
    return np.clip((np.asarray(CHOSEN.response.length) - 0.6 * SAID) / (0.4 * SAID), 0, 1)


def spreads(scores):
    groups, valid = scores.reshape(GROUPS, GROUP_SIZE), VALID.reshape(GROUPS, GROUP_SIZE)
    return np.array([row[kept].std(ddof=1) for row, kept in zip(groups, valid)])


def ppo(logprob, old, advantage, low, high, dual):
    ratio = jnp.exp(logprob - old)
    loss = jnp.maximum(-advantage * ratio, -advantage * jnp.clip(ratio, 1 - low, 1 + high))
    return jnp.where(advantage < 0, jnp.minimum(loss, -advantage * dual), loss)


def stepped(params, grads, critic_lr):
    rates = {"policy": 0.1, "critic": critic_lr}
    return {name: jax.tree.map(lambda p, g, r=rates[name]: p - r * g, params[name], grads[name]) for name in params}


def learn(start, model, numbers, **changes):
    program = jax.jit(
        functools.partial(update, model=model, config=BASE.replace(**changes), tx=made_up.PLAIN, shards=Shards())
    )
    return program(start, CHOSEN, ONES, KEY, settings(**numbers))


def moved(state, start):
    return jax.tree.map(jnp.subtract, state, start)


@pytest.fixture(scope="module")
def start():
    state = made_up.fresh_state(reference=True)
    return state.replace(reference=jax.tree.map(lambda x: 0.7 * x, state.reference))


def test_an_update_with_a_critic(start):
    """PPO from the rollout's log-probabilities, KL in the reward, half of the groups, two epochs of two minibatches."""
    numbers = NUMBERS | {
        "advantage__gamma": 0.9,
        "advantage__lam": 0.8,
        "kl__coef": 0.3,
        "advantage__value_coef": 0.6,
        "critic_lr": 0.05,
    }
    rule = {"advantage": Gae(value_clip=0.1), "objective": Ppo(dual_clip=1.5), "filter": FractionFilter(ratio=0.5)}
    rule |= {"kl": FixedKl(apply_to="reward"), "aggregation": "seq_mean_token_mean", "epochs": 2, "minibatches": 2}
    state, metrics = learn(start, MODEL, numbers, **rule)

    scores = turn_rewards().sum(axis=1)
    kept = np.argsort(-spreads(scores))[:2]
    trained = VALID & np.isin(np.arange(EPISODES) // GROUP_SIZE, kept)
    mask = np.asarray(ROWS.response_mask) & trained[:, None]
    old, before = np.asarray(ROWS.logprob), scored(start.params, MODEL)
    ref = scored({**start.params, "policy": start.reference}, MODEL).logprob
    rewards = np.zeros(mask.shape)
    for row in np.flatnonzero(trained):
        rewards[row, np.flatnonzero(mask[row])[-1]] = scores[row]
    rewards = np.where(mask, rewards - 0.3 * (old - np.asarray(ref)), 0.0)
    advantage, target = oracles.gae(rewards, np.asarray(before.value), mask, 0.9, 0.8)
    assert metrics["critic/advantage_mean"] == pytest.approx(advantage[mask].mean(), rel=1e-4)
    advantage = oracles.whiten(advantage, mask)

    @jax.jit
    def gradient(params, rows):
        def loss(params):
            new, here = scored(params, MODEL), jnp.where(rows[:, None], mask, False)
            weight = here / jnp.maximum(here.sum(axis=1, keepdims=True), 1) / here.any(axis=1).sum()
            policy = ppo(new.logprob, old, advantage, 0.2, 0.28, 1.5)
            clipped = jnp.clip(new.value, before.value - 0.1, before.value + 0.1)
            value = 0.5 * jnp.maximum((new.value - target) ** 2, (clipped - target) ** 2)
            value = jnp.sum(jnp.where(here, value, 0.0)) / here.sum()
            return jnp.sum(weight * (policy - 0.3 * new.entropy)) + 0.6 * value

        return jax.value_and_grad(loss)(params)

    params, losses, tokens = start.params, [], mask.sum(axis=1)
    for epoch in range(2):
        order = np.argsort(tokens == 0, kind="stable")[: EPISODES // 2]
        order = np.asarray(jax.random.permutation(jax.random.fold_in(KEY, epoch), order))
        order = order[np.argsort(tokens[order] == 0, kind="stable")]
        for part in range(2):
            loss, grads = gradient(params, np.isin(np.arange(EPISODES), order[part::2]))
            params = stepped(params, grads, 0.05)
            losses.append(float(loss))
    assert_close(moved(params, start.params), moved(state.params, start.params), 1e-3)
    found = {name: float(metrics[name]) for name in metrics if np.ndim(metrics[name]) == 0}
    assert found["loss"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert found["update/trained_tokens"] == mask.sum()
    assert found["rollout/filter_kept_groups"] == 2
    assert found["train/return"] == pytest.approx(scores[VALID].mean(), rel=1e-5)
    assert found["train/failed"] == len(FAILED) / EPISODES
    assert found["rollout/in_group_std"] == pytest.approx(spreads(scores).mean(), rel=1e-5)
    assert found["rollout/chosen_in_group_std"] == pytest.approx(spreads(scores)[kept].mean(), rel=1e-5)
    assert found["actor/reward_kl_penalty"] == pytest.approx((old - np.asarray(ref))[mask].mean(), rel=1e-4)
    assert found["critic/reward_max"] == pytest.approx(rewards.sum(axis=1)[trained].max(), rel=1e-4)
    assert found["critic/return_mean"] == pytest.approx(target[mask].mean(), rel=1e-4)
    assert found["update/row_tokens_mean"] == pytest.approx(np.asarray(ROWS.length)[trained].mean())
    assert (int(state.step), int(state.gradient_steps), int(state.bad_updates)) == (1, 4, 0)
    assert metrics["grad_norm"].shape == (4,)


@pytest.mark.parametrize(
    "mismatch",
    [Tis(high=1.1), pytest.param(NoCorrection(ratio_from="learner"), marks=pytest.mark.nightly)],
    ids=lambda x: x.kind,
)
def test_an_update_without_a_critic(start, mismatch):
    """Group advantages, weights from rollout to learner or none, KL in the loss, and two microbatches of one step."""
    model = dataclasses.replace(MODEL, critic="none")
    start = start.replace(params={"policy": start.params["policy"]}, opt_state={"policy": start.opt_state["policy"]})
    numbers = NUMBERS | {"kl__coef": 0.4}
    rule = {"advantage": Grpo(), "objective": Ppo(dual_clip=None), "kl": FixedKl(estimator="k3")}
    aggregation = "token_mean" if mismatch.kind == "tis" else "seq_mean_token_sum_norm"
    rule |= {"mismatch": mismatch, "grad_accum_steps": 2, "aggregation": aggregation}
    state, metrics = learn(start, model, numbers, **rule)

    mask = np.asarray(ROWS.response_mask) & VALID[:, None]
    scores = turn_rewards().sum(axis=1)
    advantage = np.zeros(EPISODES)
    for group in range(GROUPS):
        members = [e for e in range(EPISODES) if e // GROUP_SIZE == group and VALID[e]]
        advantage[members] = oracles.normalized(scores[members], True)
    advantage = np.broadcast_to(advantage[:, None], mask.shape)
    before = scored(start.params, model).logprob
    ref = scored({"policy": start.reference}, model).logprob
    weight = np.minimum(np.exp(np.asarray(before) - np.asarray(ROWS.logprob)), 1.1)
    weight = weight if mismatch.kind == "tis" else np.ones(mask.shape)
    divisor = mask.sum() if aggregation == "token_mean" else mask.any(axis=1).sum() * mask.shape[1]

    @jax.jit
    def gradient(params):
        def loss(params):
            new = scored(params, model)
            policy = ppo(new.logprob, before, advantage, 0.2, 0.28, 1e9) * weight
            distance = jnp.exp(ref - new.logprob) - (ref - new.logprob) - 1
            return jnp.sum(jnp.where(mask, policy - 0.3 * new.entropy + 0.4 * distance, 0.0)) / divisor

        return jax.value_and_grad(loss)(params)

    loss, grads = gradient(start.params)
    assert_close(moved(stepped(start.params, grads, 0.0), start.params), moved(state.params, start.params), 1e-3)
    found = {name: float(metrics[name]) for name in metrics if np.ndim(metrics[name]) == 0}
    assert found["loss"] == pytest.approx(float(loss), rel=1e-4)
    assert found["actor/grad_norm_max"] == found["actor/grad_norm"] > 0
    assert found["actor/ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    if mismatch.kind == "tis":
        assert found["rollout/importance_weight_mean"] == pytest.approx(weight[mask].mean(), rel=1e-4)
        assert found["rollout/importance_truncated"] == pytest.approx((weight == 1.1)[mask].mean(), rel=1e-4)
    distance = np.asarray(before - ref)
    assert found["actor/kl"] == pytest.approx((np.exp(-distance) + distance - 1)[mask].mean(), rel=1e-3)
    assert found["rollout/overlong"] == pytest.approx(overlong()[np.asarray(CHOSEN.turn_mask)].mean(), rel=1e-5)
    assert found["rollout/logprob_mean"] == pytest.approx(np.asarray(ROWS.logprob)[mask].mean(), rel=1e-4)


@pytest.mark.parametrize(("context", "rows"), [(FULL, EPISODES), (SINGLE_TURN, EPISODES * made_up.TURNS)])
def test_replayed_log_probabilities_have_a_row_for_each_context(context, rows):
    sizes = {"max_turns": made_up.TURNS, "max_response_tokens": SAID, "group_size": GROUP_SIZE}
    engine = toy_agent.engine_config(context=context, **sizes)
    replay = Replayer(TRAJECTORY, ONES, MODEL, engine, len(BASE.task_names), Shards())
    assert jax.eval_shape(replay, made_up.fresh_state(MODEL).params).shape == (
        rows,
        SAID * EPISODES * made_up.TURNS // rows,
    )


def test_replayed_log_probabilities_have_the_gradient_of_the_pass():
    shape = (3, 4)
    draw = np.random.default_rng(0)
    passed, replayed, advantage = (jnp.asarray(draw.normal(size=shape), jnp.float32) for _ in range(3))
    mask, zeros = jnp.asarray(draw.random(shape) < 0.7).at[0, 0].set(True), jnp.zeros(shape)
    behavior = replayed.at[0, 0].set(jnp.nextafter(replayed[0, 0], jnp.inf))  # one wrong bit
    values = {"mask": mask, "advantage": advantage, "behavior_logprob": behavior, "replayed_logprob": replayed}
    values |= {"before": RowScores(zeros, zeros, replayed, None), "weight": None, "chosen": None}
    batch = Batch(**dict.fromkeys(Batch.__dataclass_fields__, zeros) | values)
    rule = BASE.replace(advantage=Grpo(), objective=PolicyGradient(), kl=FixedKl(estimator="k2"))

    def loss(logprob, distance=None):
        scores = actor_critic.TokenScores(logprob, zeros, zeros, distance)
        return updates._loss(scores, batch, losses.count(mask), settings(kl__coef=0.5), rule)

    (found, (sums, peaks)), slope = jax.value_and_grad(loss, has_aux=True)(passed)
    tokens = int(mask.sum())
    expected = np.where(mask, -advantage * replayed + 0.25 * replayed**2, 0.0).sum() / tokens
    assert float(found) == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(slope, np.where(mask, -advantage + 0.5 * replayed, 0.0) / tokens, rtol=1e-5)
    exact = loss(passed, zeros + 4.0)[1][0]["actor/kl"]  # as of the estimator full
    assert float(exact) == 4.0 * tokens
    assert sums["rollout/logprob_bit_equal"] == tokens - 1
    assert 0 < peaks["rollout/logprob_gap_max"] == sums["rollout/logprob_gap_mean"] < 1e-6
    gaps = np.abs(np.asarray(passed) - np.asarray(replayed))[np.asarray(mask)]
    assert float(peaks["rollout/parallel_gap_max"]) == pytest.approx(gaps.max())
    assert float(sums["rollout/parallel_gap_mean"]) == pytest.approx(gaps.sum(), rel=1e-5)


@pytest.mark.parametrize(("mix", "step"), [(1.0, 3), (0.25, 3), (1.0, 2)])
def test_a_reference_moves_every_few_iterations_by_a_share(mix, step, start):
    """After the second iteration, not after the third."""
    before = start.replace(step=jnp.int32(step))
    numbers = settings(kl__coef=0.3, kl__sync_mix=mix)
    found, metrics = made_up.learn(state=before, numbers=numbers, kl=FixedKl(sync_every=2).untraced())
    share = mix if step == 3 else 0.0
    expected = jax.tree.map(lambda old, new: (1 - share) * old + share * new, start.reference, found.params["policy"])
    assert_close(expected, found.reference)
    if share in (0.0, 1.0):
        kept = found.params["policy"] if share else start.reference
        assert jax.tree.all(jax.tree.map(np.array_equal, kept, found.reference))
    assert float(metrics["actor/kl"]) != 0  # measured before the move
