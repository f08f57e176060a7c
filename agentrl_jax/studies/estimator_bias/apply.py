"""Applies an estimator to trajectories as a learner does (`algos.estimate`, `algos.losses`), compiled.

Shapes: `N` rows are trajectories of a level, in contiguous groups of `M`; otherwise as in `task`.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentrl_jax.algos import losses
from agentrl_jax.algos.advantages import whiten
from agentrl_jax.algos.estimate import AdvantageInputs, estimate
from agentrl_jax.algos.groups import center_and_std
from agentrl_jax.algos.rewards import place_rewards
from agentrl_jax.studies.estimator_bias import task
from agentrl_jax.studies.estimator_bias.cases import Case


class Rows(NamedTuple):
    """Trajectories with what an estimator needs of them.

    Attributes:
        mask, last, reward, state: bool[N, S], i64[N, T], f64[N, T], i64[N, T], see `task.Trajectories`.
        values: f64[N, S] used in place of the critic's values.
        logprob: f64[N, S] of the sampled tokens under the trained policy; 0 elsewhere.
        behavior_logprob: f64[N, S] under the behavior policy, which sampled them.
        slopes: f64[N, S, P] derivatives of `logprob` with respect to the parameters.
    """

    mask: jax.Array
    last: jax.Array
    reward: jax.Array
    state: jax.Array
    values: jax.Array
    logprob: jax.Array
    behavior_logprob: jax.Array
    slopes: jax.Array


@functools.partial(jax.jit, static_argnames="case")
def of_groups(case: Case, level: Rows, index: jax.Array, baseline: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Standard deviations of returns f64[C] and estimated gradients f64[C, P].

    Args:
        case: the estimator.
        level: all trajectories of a level.
        index: i64[C, M], the trajectories of each group.
        baseline: f64[] return of the greedy episode; only remax reads it.
    """

    def one(chosen):
        rows = jax.tree.map(lambda x: x[chosen], level)
        weights = losses.token_weights(
            rows.mask, case.aggregation, losses.count(rows.mask), norm_length=float(task.ROW)
        )
        advantage = advantages(case, rows, len(chosen), baseline)
        return jnp.einsum("ms,msp->p", logprob_gradient(case, rows, advantage, weights), rows.slopes)

    returns = jnp.sum(level.reward, axis=1)[index]
    return center_and_std(returns, jnp.ones(index.shape, bool))[1], jax.vmap(one)(index)


def logprob_gradient(case: Case, rows: Rows, advantage: jax.Array, weights: jax.Array) -> jax.Array:
    """Minus the derivative of the loss with respect to each log-probability, f64[N, S], at the trained policy.

    Args:
        case: the estimator.
        rows: the trajectories.
        advantage: f64[N, S].
        weights: f64[N, S] of the tokens in the loss; 0 where `mask` is false.
    """
    old = rows.behavior_logprob if case.correction == "ratio" else rows.logprob
    importance = _importance(case, rows)

    def loss(logprob):
        per_token, _ = losses.objective(
            case.objective,
            logprob,
            old,
            advantage,
            rows.mask,
            clip_low=case.clip_low,
            clip_high=math.inf if case.clip_high is None else case.clip_high,
            dual_clip=case.dual_clip,
        )
        return jnp.sum(per_token * importance * weights)

    return -jax.grad(loss)(rows.logprob)


def advantages(case: Case, rows: Rows, group_size: int, baseline: jax.Array) -> jax.Array:
    """Advantages of all tokens, f64[N, S], as the learner estimates them from these groups.

    Args:
        case: the estimator.
        rows: whole groups.
        group_size: trajectories per group.
        baseline: f64[] return of the greedy episode; only remax reads it.
    """
    positions = jnp.arange(task.ROW)
    rewards = place_rewards(rows.reward, rows.last, task.ROW, case.placement)
    if case.correction == "per_decision":
        rewards *= _up_to_here(rows)
    state = rows.state if case.anchor == "state" else jnp.broadcast_to(jnp.arange(task.TURNS), rows.state.shape)
    # Where only turns are compared, comparisons of episodes are turned off.
    scores = jnp.sum(rows.reward, axis=1).reshape(-1, group_size) * (case.anchor == "state")
    evidence = AdvantageInputs(
        rewards=rewards,
        values=rows.values,
        mask=rows.mask,
        turn=jnp.broadcast_to(positions // (task.RESPONSE + 1), rows.mask.shape),
        turn_end=jnp.any(rows.last[:, :, None] == positions, axis=1),
        scores=scores,
        valid=jnp.ones(scores.shape, bool),
        baseline=jnp.broadcast_to(baseline, len(scores)),
        turn_rewards=rows.reward,
        state=jnp.stack([state, state], axis=-1).astype(jnp.uint32),
        turn_mask=rows.last >= 0,
    )
    found, _ = estimate(evidence, case.rule, case.rule)
    return whiten(found, rows.mask) if case.rule.whiten else found


def _importance(case: Case, rows: Rows) -> jax.Array:
    """Weights of the tokens' losses, f64[N, S]."""
    if case.correction == "truncated" or case.correction == "masked":
        weights, _ = losses.importance_weights(
            rows.logprob, rows.behavior_logprob, rows.mask, cap=case.cap, correction=case.correction, level=case.level
        )
        return weights
    if case.correction == "trajectory":
        return jnp.broadcast_to(_up_to_here(rows)[:, -1:], rows.mask.shape)
    if case.correction == "prefix":
        return _up_to_here(rows)
    return jnp.ones(rows.mask.shape)


def _up_to_here(rows: Rows) -> jax.Array:
    """Product of the ratios trained / behavior policy of all tokens up to each position, f64[N, S]."""
    return jnp.exp(jnp.cumsum(rows.logprob - rows.behavior_logprob, axis=1))
