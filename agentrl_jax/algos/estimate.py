"""Computes the advantage of each token from the rewards of a batch, by the estimator that the configuration names.

Shapes: `E` episodes of `T` turns and `S` positions, in `Gr` groups of `M` contiguous episodes. The learner may cut
episodes into rows of single turns; estimators always see whole episodes, so that advantages do not depend on the cut.
"""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt

from agentrl_jax.algos import advantages, gigpo, groups
from agentrl_jax.algos.masked import Devices
from agentrl_jax.errors import BadValue


class AdvantageInputs(struct.PyTreeNode):
    """Inputs of the advantage estimators."""

    rewards: Float[Array, "E S"]
    """Reward earned by sampling the token; only on sampled tokens."""
    values: Float[Array, "E S"]
    """The critic's values; arbitrary if the estimator does not read them."""
    mask: Bool[Array, "E S"]
    """Sampled tokens."""
    turn: Int[Array, "E S"]
    """Turn of the episode that a position belongs to."""
    turn_end: Bool[Array, "E S"]
    """Last sampled token of its turn."""
    scores: Float[Array, "Gr M"]
    """Return of each episode."""
    valid: Bool[Array, "Gr M"]
    """Episodes that count."""
    baseline: Float[Array, " Gr"] | None
    """Return of a greedy episode of the group; None if the estimator does not read it."""
    turn_rewards: Float[Array, "E T"]
    state: UInt[Array, "E T 2"]
    """Hash of each turn's anchor state, see `gigpo`."""
    turn_mask: Bool[Array, "E T"]
    """Turns that were played."""
    final_value: Float[Array, " E"] | Float[Array, ""] | float = 0.0
    """The critic's value where an episode was truncated, see `advantages`; 0 where it terminated."""


def estimate(
    inputs: AdvantageInputs, rule: Any, numbers: Any, devices: Devices | None = None
) -> tuple[Float[Array, "E S"], Float[Array, "E S"]]:
    """The advantage of every token, not whitened, and the critic's target (0 without a critic); 0 outside the mask.

    `rule` is a member of the union `config.algo.Advantage`. grpo, rloo, remax: see `groups`. gigpo: the episode's group
    advantage plus `step_weight` times the turn's advantage, see `gigpo`. The others: see `advantages`. `numbers` holds
    the traced settings: `rule` itself, or `learner.settings.UpdateSettings`. `devices` are those that the groups are
    divided among, see `masked`.

    Raises ValueError if there is no estimator of that kind, or if remax was given no greedy episodes.
    """
    e, target = inputs, jnp.zeros_like(inputs.rewards)
    if rule.kind in ("gae", "turn_gae", "bi_level_gae"):
        arrays, options = (e.rewards, e.values, e.mask), {"gamma": numbers.gamma, "lam": numbers.lam}
        options["final_value"] = e.final_value
        if rule.kind == "gae":
            advantage, target = advantages.gae(*arrays, **options)
        elif rule.kind == "turn_gae":
            advantage, target = advantages.turn_gae(*arrays, e.turn_end, **options)
        else:
            advantage, target = advantages.bi_level_gae(*arrays, e.turn_end, turn_gamma=numbers.turn_gamma, **options)
    elif rule.kind == "reward_to_go":
        advantage, _ = advantages.gae(e.rewards, jnp.zeros_like(e.values), e.mask, gamma=numbers.gamma, lam=1.0)
    else:
        advantage = jnp.take_along_axis(_of_turns(e, rule, numbers), e.turn, axis=1)
    if rule.spread_weighted:
        weights = groups.spread_weights(e.scores, e.valid, devices)
        advantage *= jnp.repeat(weights, e.scores.shape[1])[:, None]
    if rule.length_weighted:
        advantage *= groups.length_weights(jnp.sum(e.mask, axis=1), devices)[:, None]
    return jnp.where(e.mask, advantage, 0.0), target


def _of_turns(e: AdvantageInputs, rule: Any, numbers: Any) -> Float[Array, "E T"]:
    """Advantages of the estimators that compare episodes."""
    if rule.kind == "rloo":
        of_episode = groups.leave_one_out(e.scores, e.valid)
    elif rule.kind == "remax":
        if e.baseline is None:
            raise BadValue(
                "remax compares with a greedy episode of each group; give their returns as `baseline`", key="baseline"
            )
        of_episode = groups.over_baseline(e.scores, e.valid, e.baseline)
    elif rule.kind in ("grpo", "gigpo"):
        of_episode = groups.group_advantages(e.scores, e.valid, normalize_std=rule.normalize_by_std)
    else:
        raise BadValue(
            f"there is no estimator {rule.kind!r}; the kinds are those of algo.advantage",
            key="estimator",
            value=rule.kind,
        )
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
