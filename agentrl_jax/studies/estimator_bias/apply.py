"""Applies an estimator to trajectories as a learner does (`algos.estimate`, `algos.losses`), compiled.

Dimensions: `N` rows are trajectories of a level, in contiguous groups of `M`; `P` parameters; otherwise as in `task`.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.algos import losses, token_rules
from agentrl_jax.algos.advantages import whiten
from agentrl_jax.algos.estimate import AdvantageInputs, estimate
from agentrl_jax.algos.groups import center_and_std
from agentrl_jax.algos.importance import importance_weights
from agentrl_jax.algos.rewards import place_rewards
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.studies.estimator_bias import task
from agentrl_jax.studies.estimator_bias.cases import Case


class Rows(NamedTuple):
    """Trajectories (`task.Trajectories`) with what an estimator needs of them; log-probabilities are 0 off the mask."""

    mask: Bool[Array, "N S"]
    last: Int[Array, "N T"]
    reward: Float[Array, "N T"]
    state: Int[Array, "N T"]
    values: Float[Array, "N S"]
    """Used in place of the critic's values."""
    logprob: Float[Array, "N S"]
    """Under the trained policy."""
    behavior_logprob: Float[Array, "N S"]
    """Under the behavior policy, which sampled the tokens."""
    entropy: Float[Array, "N S"]
    """Of the trained policy."""
    slopes: Float[Array, "N S P"]
    """Derivatives of `logprob` with respect to the parameters."""


@functools.partial(jax.jit, static_argnames="case")
def group_gradients(
    case: Case, level: Rows, index: Int[Array, "C M"], baseline: Float[Array, ""]
) -> tuple[Float[Array, " C"], Float[Array, "C P"]]:
    """Standard deviations of the returns, and estimated gradients, of groups of a level's trajectories.

    `index` has the trajectories of each group, `baseline` the return of the greedy episode, which only remax reads.
    """

    def gradient(members):
        rows = jax.tree.map(lambda x: x[members], level)
        weights = losses.token_weights(
            rows.mask, case.aggregation, losses.count(rows.mask), norm_length=float(task.ROW)
        )
        advantage = advantages(case, rows, len(members), baseline)
        return jnp.einsum("ms,msp->p", logprob_gradient(case, rows, advantage, weights), rows.slopes)

    returns = jnp.sum(level.reward, axis=1)[index]
    return center_and_std(returns, jnp.ones(index.shape, bool))[1], jax.vmap(gradient)(index)


def logprob_gradient(
    case: Case, rows: Rows, advantage: Float[Array, "N S"], weights: Float[Array, "N S"]
) -> Float[Array, "N S"]:
    """Minus the derivative of the loss with respect to each log-probability, at the trained policy.

    `weights` are those of the tokens in the loss, 0 where the mask is false.
    """
    old = rows.behavior_logprob if case.correction == "ratio" else rows.logprob
    importance = _importance(case, rows)

    numbers = case.tokens.traced()
    if case.tokens.kind != "all":
        read: dict[str, Any] = {"entropy": rows.entropy, "logprob": old, "advantage": advantage}
        equal = jnp.zeros(rows.mask.shape, jnp.uint32)
        chosen = token_rules.chosen_tokens(case.tokens, numbers, rows.mask, **read, draws=equal)

    def loss(logprob):
        inputs = losses.ObjectiveInputs(logprob, old, rows.behavior_logprob, advantage, rows.mask, rows.entropy)
        per_token, _ = losses.objective(inputs, case.objective, case.objective.traced())
        per_token = per_token * importance
        if case.tokens.kind != "all":
            per_token = token_rules.changed_loss(per_token, chosen, logprob, old, case.tokens, numbers)
        return jnp.sum(per_token * weights)

    return -jax.grad(loss)(rows.logprob)


def advantages(case: Case, rows: Rows, group_size: int, baseline: Float[Array, ""]) -> Float[Array, "N S"]:
    """Advantages of all tokens, as the learner estimates them from these groups; only remax reads the baseline."""
    positions = jnp.arange(task.ROW)
    rewards = place_rewards(rows.reward, rows.last, task.ROW, case.placement)
    if case.correction == "per_decision":
        rewards *= _ratio_up_to(rows)
    state = rows.state if case.anchor == "state" else jnp.broadcast_to(jnp.arange(task.TURNS), rows.state.shape)
    # Where only turns are compared, comparisons of episodes are turned off.
    scores = jnp.sum(rows.reward, axis=1).reshape(-1, group_size) * (case.anchor == "state")
    inputs = AdvantageInputs(
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
        devices=Shards(),
    )
    found, _ = estimate(inputs, case.rule, case.rule.traced())
    return whiten(found, rows.mask) if case.rule.whiten else found


def _importance(case: Case, rows: Rows) -> Float[Array, "N S"]:
    """Weights of the tokens' losses."""
    if case.mismatch is not None:
        return importance_weights(rows.logprob, rows.behavior_logprob, rows.mask, case.mismatch)[0]
    if case.correction == "trajectory":
        return jnp.broadcast_to(_ratio_up_to(rows)[:, -1:], rows.mask.shape)
    return _ratio_up_to(rows) if case.correction == "prefix" else jnp.ones(rows.mask.shape)


def _ratio_up_to(rows: Rows) -> Float[Array, "N S"]:
    """Product of the ratios trained / behavior policy of all tokens up to each position."""
    return jnp.exp(jnp.cumsum(rows.logprob - rows.behavior_logprob, axis=1))
