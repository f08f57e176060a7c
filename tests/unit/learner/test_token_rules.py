"""Tokens of a minibatch that are treated apart, the entropy bonus with a target, and the average of the policy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_up import BASE, EPISODES, GRPO, KEY, NO_CRITIC, ONES, TRAJECTORY, assert_close, fresh_state, learn, settings

from agentrl_jax.config.mismatch import NoCorrection
from agentrl_jax.config.objectives import PolicyGradient
from agentrl_jax.config.token_rules import AllTokens, ClipCov, TopEntropy
from agentrl_jax.learner import update as updates
from agentrl_jax.learner.batch import Batch, make_batch
from agentrl_jax.learner.row_scores import RowScores
from agentrl_jax.learner.state import Kept, with_kept
from agentrl_jax.models import actor_critic
from agentrl_jax.parallel.shards import Shards

RULE = GRPO | {"tokens": TopEntropy().untraced(), "objective": PolicyGradient(), "mismatch": BASE.mismatch}
SHARE, RATE, COEF, STEP = 0.3, 0.25, 0.2, 0.125
NUMBERS = {"lr": 1.0, "tokens__share": SHARE, "average_rate": RATE, "entropy_step": STEP}


@functools.cache
def learned(target):
    state = with_kept(fresh_state(NO_CRITIC), Kept(average=True, entropy_coef=COEF))
    return learn(state=state, numbers=settings(entropy_target=target, **NUMBERS), model=NO_CRITIC, **RULE)


@functools.cache
def batch():
    config = BASE.replace(**RULE)
    make = functools.partial(make_batch, model=NO_CRITIC, config=config, shards=Shards(), replay=None, greedy=None)
    return jax.jit(make)(fresh_state(NO_CRITIC), TRAJECTORY, ONES, settings(**NUMBERS))[0]


def scores(policy):
    rows = batch()
    params = {"policy": policy}
    return actor_critic.score_tokens(params, NO_CRITIC, rows.tokens, rows.position, ONES, mask=rows.mask)


@pytest.mark.parametrize(("target", "coef", "weight"), [(0.1, COEF - STEP, 0.0), (30.0, COEF + STEP, COEF + STEP)])
def test_the_tokens_of_largest_entropy_are_trained_and_the_bonus_follows_its_target(target, coef, weight):
    state, metrics = learned(target)
    start, rows = fresh_state(NO_CRITIC), batch()
    mask, entropy = np.asarray(rows.mask), np.asarray(scores(start.params["policy"]).entropy)
    number = round(SHARE * mask.sum())
    chosen = mask & (entropy >= np.sort(entropy[mask])[-number])
    assert chosen.sum() == number
    assert metrics["actor/chosen_tokens"] == pytest.approx(number / mask.sum())

    @jax.jit
    def slope(policy, weight):
        def loss(policy):
            found = scores(policy)
            of_tokens = -jnp.where(chosen, rows.advantage * found.logprob, 0.0) - weight * found.entropy
            return jnp.sum(jnp.where(mask, of_tokens, 0.0)) / mask.sum()

        return jax.grad(loss)(policy)

    moved = jax.tree.map(jnp.subtract, start.params["policy"], slope(start.params["policy"], weight))
    assert_close(state.params["policy"], moved, 1e-4)
    between = jax.tree.map(lambda old, new: old + RATE * (new - old), start.params["policy"], state.params["policy"])
    assert_close(state.average, between)
    assert state.evaluated["policy"] is state.average
    assert (float(state.entropy_coef), float(metrics["actor/entropy_coef"])) == pytest.approx((coef, weight))


@pytest.mark.parametrize(
    ("tokens", "source"), [(AllTokens(), "same_pass"), (TopEntropy(), "same_pass"), (ClipCov(), "learner")]
)
def test_rules_by_covariance_need_log_probabilities_before_an_only_step(tokens, source):
    assert BASE.replace(tokens=tokens, mismatch=NoCorrection()).old_logprobs == source


def test_the_weight_of_the_bonus_stays_where_nothing_is_trained_and_never_falls_below_0():
    coef = jnp.float32(0.1)
    empty = Batch(*[jnp.zeros((2, 3))] * len(Batch.__dataclass_fields__)).replace(mask=jnp.zeros((2, 3), bool))
    numbers = settings(entropy_target=0.5, entropy_step=STEP)
    assert updates._toward_entropy(coef, empty, numbers, Shards())[0] == coef
    sampled = empty.replace(mask=jnp.ones((2, 3), bool), behavior_logprob=jnp.full((2, 3), -0.75))
    assert updates._toward_entropy(coef, sampled, numbers, Shards())[0] == 0


def test_tokens_are_chosen_among_those_of_the_minibatch_and_drawn_by_step():
    shape, draw = (EPISODES, 40), np.random.default_rng(0)
    logprob, advantage = (jnp.asarray(draw.normal(size=shape), jnp.float32) for _ in range(2))
    nothing = dict.fromkeys(Batch.__dataclass_fields__)
    mask = jnp.asarray(draw.random(shape) < 0.5)
    rows = Batch(**nothing | {"mask": mask, "advantage": advantage, "before": RowScores(None, None, logprob, None)})
    minibatch = jnp.array([3, 5, 11])
    config = BASE.replace(tokens=ClipCov().untraced())
    numbers = settings(tokens__share=0.2, tokens__low=0.1, tokens__high=9.0)

    def chosen(step):
        key = jax.random.fold_in(KEY, step)
        return np.asarray(updates._with_chosen(rows, minibatch, key, numbers, config, Shards()).chosen)

    first, second = chosen(0), chosen(1)
    inside = np.asarray(mask)[np.asarray(minibatch)]
    for found in (first, second):
        assert found[np.asarray(minibatch)].sum() == round(0.2 * inside.sum())
        assert not np.delete(found, np.asarray(minibatch), axis=0).any()
    assert (first != second).any()
    np.testing.assert_array_equal(first, chosen(0))
