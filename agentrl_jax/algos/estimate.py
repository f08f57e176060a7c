"""Computes the advantage of each token from the rewards of a batch, by the estimator that the configuration names.

Shapes: `E` episodes of `T` turns and `S` positions, in `Gr` groups of `M` contiguous episodes. The learner may cut
episodes into rows of single turns; estimators always see whole episodes, so that advantages do not depend on the cut.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from agentrl_jax.algos import advantages, groups
from agentrl_jax.algos import gigpo as gigpo


class AdvantageInputs(struct.PyTreeNode):
    """Inputs of the advantage estimators.

    Attributes:
        rewards: f32[E, S] reward earned by sampling the token; only on sampled tokens.
        values: f32[E, S] the critic's values; arbitrary if the estimator does not read them.
        mask: bool[E, S] sampled tokens.
        turn: i32[E, S] turn of the episode that a position belongs to.
        turn_end: bool[E, S] last sampled token of its turn.
        scores: f32[Gr, M] return of each episode.
        valid: bool[Gr, M] episodes that count.
        baseline: f32[Gr] return of a greedy episode of the group; None if the estimator does not read it.
        turn_rewards: f32[E, T] reward of each turn.
        state: u32[E, T, 2] anchor state of each turn, see `gigpo`.
        turn_mask: bool[E, T] turns that were played.
        final_value: f32[E] the critic's value where an episode was truncated, see `advantages`; 0 where it terminated.
    """

    rewards: jax.Array
    values: jax.Array
    mask: jax.Array
    turn: jax.Array
    turn_end: jax.Array
    scores: jax.Array
    valid: jax.Array
    baseline: jax.Array | None
    turn_rewards: jax.Array
    state: jax.Array
    turn_mask: jax.Array
    final_value: jax.Array | float = 0.0


def estimate(evidence: AdvantageInputs, rule: Any, numbers: Any) -> tuple[jax.Array, jax.Array]:
    """The advantage of every token, not whitened.

    Args:
        evidence: the inputs.
        rule: which estimator, one of the classes of `config.algo.Advantage`. grpo, rloo, remax: see `groups`. gigpo:
            the episode's group advantage plus `step_weight` times the turn's advantage, see `gigpo`. The others: see
            `advantages`.
        numbers: object with the numeric settings, f32[] or float: `rule` itself, or `learner.settings.UpdateSettings`.

    Returns:
        Advantages f32[E, S] and the critic's targets f32[E, S] (0 for estimators without a critic); both 0 where `mask`
        is false.

    Raises:
        ValueError: there is no estimator of that kind, or remax was given no greedy episodes.
    """
    e, target = evidence, jnp.zeros_like(evidence.rewards)
    if rule.kind == "gae":
        advantage, target = advantages.gae(
            e.rewards, e.values, e.mask, gamma=numbers.gamma, lam=numbers.lam, final_value=e.final_value
        )
    elif rule.kind == "turn_gae":
        advantage, target = advantages.turn_gae(
            e.rewards,
            e.values,
            e.mask,
            e.turn_end,
            gamma=numbers.gamma,
            lam=numbers.lam,
            final_value=e.final_value,
        )
    elif rule.kind == "bi_level_gae":
        advantage, target = advantages.bi_level_gae(
            e.rewards,
            e.values,
            e.mask,
            e.turn_end,
            gamma=numbers.gamma,
            lam=numbers.lam,
            turn_gamma=numbers.turn_gamma,
            final_value=e.final_value,
        )
    elif rule.kind == "reward_to_go":
        advantage, _ = advantages.gae(e.rewards, jnp.zeros_like(e.values), e.mask, gamma=numbers.gamma, lam=1.0)
    else:
        advantage = jnp.take_along_axis(_of_turns(e, rule, numbers), e.turn, axis=1)
    if rule.spread_weighted:
        weights = groups.spread_weights(e.scores, e.valid)
        advantage *= jnp.repeat(weights, e.scores.shape[1])[:, None]
    if rule.length_weighted:
        advantage *= groups.length_weights(jnp.sum(e.mask, axis=1))[:, None]
    return jnp.where(e.mask, advantage, 0.0), target


def _of_turns(e: AdvantageInputs, rule: Any, numbers: Any) -> jax.Array:
    """Advantages f32[E, T] of the estimators that compare episodes."""
    if rule.kind == "rloo":
        of_episode = groups.leave_one_out(e.scores, e.valid)
    elif rule.kind == "remax":
        if e.baseline is None:
            raise ValueError("remax compares with a greedy episode of each group; give their returns as `baseline`")
        of_episode = groups.over_baseline(e.scores, e.valid, e.baseline)
    elif rule.kind in ("grpo", "gigpo"):
        of_episode = groups.group_advantages(e.scores, e.valid, normalize_std=rule.normalize_by_std)
    else:
        raise ValueError(f"there is no estimator {rule.kind!r}; the kinds are those of algo.advantage")
    of_turns = jnp.broadcast_to(of_episode.reshape(-1, 1), e.turn_mask.shape)
    if rule.kind != "gigpo":
        return of_turns
    group = jnp.repeat(jnp.arange(len(e.scores)), e.scores.shape[1])
    return of_turns + numbers.step_weight * gigpo.turn_advantages(
        gigpo.returns_to_go(e.turn_rewards, numbers.turn_gamma),
        e.state,
        group,
        e.turn_mask & e.valid.reshape(-1, 1),
        history=rule.history,
        history_power=numbers.history_power,
        normalize_std=rule.normalize_by_std,
    )
