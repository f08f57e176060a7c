"""From what a batch has earned to the advantage of each token: the estimators by their names.

Letters: `E` episodes of `T` turns and `S` positions, in `Gr` groups of `M` contiguous members. A learner may cut
episodes into rows of single turns; estimators see every episode in one piece, so that what a turn is worth does not
depend on how it is cut.
"""

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct

from agentrl_jax.algos import advantages, anchors, groups

Advantage = Literal["gae", "turn_gae", "bi_level_gae", "reward_to_go", "grpo", "rloo", "remax", "gigpo"]

WITH_CRITIC = ("gae", "turn_gae", "bi_level_gae")
"""Estimators that read a critic's values."""
PER_EPISODE = ("grpo", "rloo", "remax", "gigpo")
"""Estimators that compare returns of whole episodes, so that they do not see where in a row a reward stands."""
PER_GROUP = ("grpo", "rloo", "gigpo")
"""Estimators that need at least two members a group."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EstimatorRule:
    """Which estimator, and what fixes its program.

    Attributes:
        advantage: its name. gae, turn_gae, bi_level_gae: see `advantages`. reward_to_go: the discounted return from a
            token on, without a baseline (REINFORCE). grpo, rloo, remax: see `groups`. gigpo: the episode's group
            advantage plus `step_weight` times that of its turn, see `anchors`.
        normalise_std: grpo and gigpo divide by standard deviations.
        history: earlier states that anchor states of gigpo are told apart by; above 0 it is HGPO.
        spread_weighted: groups weigh by the standard deviation of their returns, see `groups.spread_weights`.
        length_weighted: episodes weigh by the inverse of their length, see `groups.length_weights`.
        whiten: the advantages of the batch get mean 0 and variance 1 in the end.
    """

    advantage: Advantage
    normalise_std: bool = True
    history: int = 0
    spread_weighted: bool = False
    length_weighted: bool = False
    whiten: bool = False


class EstimatorSettings(struct.PyTreeNode):
    """Traced numbers of the estimators, f32[] each.

    Attributes:
        gamma: discount per trained token; per turn in turn_gae.
        lam: lambda of the GAE family.
        turn_gamma: discount per turn of bi_level_gae and of gigpo's returns.
        step_weight: weight of gigpo's turn advantages.
        history_power: how much gigpo prefers long histories, see `anchors.turn_advantages`.
    """

    gamma: jax.Array
    lam: jax.Array
    turn_gamma: jax.Array
    step_weight: jax.Array
    history_power: jax.Array


class Evidence(struct.PyTreeNode):
    """What an estimator may read.

    Attributes:
        rewards: f32[E, S] what is earned once the token is drawn; only on sampled tokens.
        values: f32[E, S] the critic's; anything where no estimator reads them.
        mask: bool[E, S] sampled tokens.
        turn: i32[E, S] turn of the episode that a position belongs to.
        turn_end: bool[E, S] last sampled token of its turn.
        scores: f32[Gr, M] return of each episode.
        intact: bool[Gr, M] episodes that count.
        baseline: f32[Gr] return of a greedy episode of the group; None where nothing reads it.
        turn_rewards: f32[E, T].
        state: u32[E, T, 2] anchor state of each turn, see `anchors`.
        played: bool[E, T].
        final_value: f32[E] the critic's where an episode was cut off, see `advantages`; 0 for those that ended.
    """

    rewards: jax.Array
    values: jax.Array
    mask: jax.Array
    turn: jax.Array
    turn_end: jax.Array
    scores: jax.Array
    intact: jax.Array
    baseline: jax.Array | None
    turn_rewards: jax.Array
    state: jax.Array
    played: jax.Array
    final_value: jax.Array | float = 0.0


def estimate(evidence: Evidence, rule: EstimatorRule, settings: EstimatorSettings) -> tuple[jax.Array, jax.Array]:
    """The advantage of every token.

    Returns:
        Advantages f32[E, S] and the critic's targets f32[E, S], 0 for estimators without one; both 0 where `mask` does
        not hold.

    Raises:
        ValueError: there is no estimator of that name.
    """
    e, target = evidence, jnp.zeros_like(evidence.rewards)
    if rule.advantage == "gae":
        advantage, target = advantages.gae(
            e.rewards, e.values, e.mask, gamma=settings.gamma, lam=settings.lam, final_value=e.final_value
        )
    elif rule.advantage == "turn_gae":
        advantage, target = advantages.turn_gae(
            e.rewards,
            e.values,
            e.mask,
            e.turn_end,
            gamma=settings.gamma,
            lam=settings.lam,
            final_value=e.final_value,
        )
    elif rule.advantage == "bi_level_gae":
        advantage, target = advantages.bi_level_gae(
            e.rewards,
            e.values,
            e.mask,
            e.turn_end,
            gamma=settings.gamma,
            lam=settings.lam,
            turn_gamma=settings.turn_gamma,
            final_value=e.final_value,
        )
    elif rule.advantage == "reward_to_go":
        advantage, _ = advantages.gae(e.rewards, jnp.zeros_like(e.values), e.mask, gamma=settings.gamma, lam=1.0)
    else:
        advantage = jnp.take_along_axis(_of_turns(e, rule, settings), e.turn, axis=1)
    if rule.spread_weighted:
        weights = groups.spread_weights(e.scores, e.intact)
        advantage *= jnp.repeat(weights, e.scores.shape[1])[:, None]
    if rule.length_weighted:
        advantage *= groups.length_weights(jnp.sum(e.mask, axis=1))[:, None]
    advantage = jnp.where(e.mask, advantage, 0.0)
    return advantages.whiten(advantage, e.mask) if rule.whiten else advantage, target


def _of_turns(e: Evidence, rule: EstimatorRule, settings: EstimatorSettings) -> jax.Array:
    """Advantages f32[E, T] of the estimators that compare episodes."""
    if rule.advantage == "rloo":
        of_episode = groups.leave_one_out(e.scores, e.intact)
    elif rule.advantage == "remax":
        if e.baseline is None:
            raise ValueError("remax compares with a greedy episode of each group; give their returns as `baseline`")
        of_episode = groups.over_baseline(e.scores, e.intact, e.baseline)
    elif rule.advantage in ("grpo", "gigpo"):
        of_episode = groups.group_advantages(e.scores, e.intact, normalise_std=rule.normalise_std)
    else:
        raise ValueError(
            f"advantage is {rule.advantage!r}; expected gae, turn_gae, bi_level_gae, reward_to_go, grpo, rloo, remax "
            "or gigpo"
        )
    of_turns = jnp.broadcast_to(of_episode.reshape(-1, 1), e.played.shape)
    if rule.advantage != "gigpo":
        return of_turns
    group = jnp.repeat(jnp.arange(len(e.scores)), e.scores.shape[1])
    return of_turns + settings.step_weight * anchors.turn_advantages(
        anchors.returns_to_go(e.turn_rewards, settings.turn_gamma),
        e.state,
        group,
        e.played & e.intact.reshape(-1, 1),
        history=rule.history,
        history_power=settings.history_power,
        normalise_std=rule.normalise_std,
    )
