"""Computes the advantage of each token from the rewards of a batch, by the estimator that the configuration names.

Shapes: `E` episodes of `T` turns and `S` positions, in `Gr` groups of `M` contiguous episodes. The learner may cut
episodes into rows of single turns; estimators always see whole episodes, so that advantages do not depend on the cut.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, UInt

from agentrl_jax.algos import advantages, gigpo, groups
from agentrl_jax.algos.masked import Devices
from agentrl_jax.errors import BadValue

Numbers = Mapping[str, jax.Array | float]
"""The traced numbers of a rule, by name."""
Advantages = tuple[Float[Array, "E S"], Float[Array, "E S"] | None]
"""The advantage of every token, which may be anything outside the mask, and the critic's target; None without one."""


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
    devices: Devices | None = struct.field(pytree_node=False, default=None)
    """Those that the groups are divided among, see `masked`; None: the arrays have all groups."""


def estimate(inputs: AdvantageInputs, rule: Any, numbers: Numbers) -> tuple[Float[Array, "E S"], Float[Array, "E S"]]:
    """The advantage of every token, not whitened, and the critic's target (0 without a critic); 0 outside the mask.

    `rule` is a member of the union `config.algo.Advantage`, whose function is that of its kind in `ESTIMATORS`, and
    `numbers` its traced numbers.

    Raises ValueError if there is no estimator of that kind, or if remax was given no greedy episodes.
    """
    e = inputs
    if rule.kind not in ESTIMATORS:
        why = "but there is no such estimator; the kinds are those of algo.advantage"
        raise BadValue.of("estimator", rule.kind, why)
    advantage, target = ESTIMATORS[rule.kind](e, rule, numbers)
    if rule.spread_weighted:
        weights = groups.spread_weights(e.scores, e.valid, e.devices)
        advantage *= jnp.repeat(weights, e.scores.shape[1])[:, None]
    if rule.length_weighted:
        advantage *= groups.length_weights(jnp.sum(e.mask, axis=1), e.devices)[:, None]
    return jnp.where(e.mask, advantage, 0.0), jnp.zeros_like(e.rewards) if target is None else target


def _gae(e: AdvantageInputs, rule: Any, n: Numbers) -> Advantages:
    return advantages.gae(e.rewards, e.values, e.mask, gamma=n["gamma"], lam=n["lam"], final_value=e.final_value)


def _turn_gae(e: AdvantageInputs, rule: Any, n: Numbers) -> Advantages:
    arrays = e.rewards, e.values, e.mask, e.turn_end
    return advantages.turn_gae(*arrays, gamma=n["gamma"], lam=n["lam"], final_value=e.final_value)


def _bi_level_gae(e: AdvantageInputs, rule: Any, n: Numbers) -> Advantages:
    discounts = {"gamma": n["gamma"], "lam": n["lam"], "turn_gamma": n["turn_gamma"]}
    return advantages.bi_level_gae(e.rewards, e.values, e.mask, e.turn_end, **discounts, final_value=e.final_value)


def _reward_to_go(e: AdvantageInputs, rule: Any, n: Numbers) -> Advantages:
    return advantages.gae(e.rewards, jnp.zeros_like(e.values), e.mask, gamma=n["gamma"], lam=1.0)[0], None


def _grpo(e: AdvantageInputs, rule: Any, n: Numbers) -> Advantages:
    found = groups.group_advantages(e.scores, e.valid, normalize_std=rule.normalize_by_std)
    return _of_tokens(e, _of_turns(e, found)), None


def _rloo(e: AdvantageInputs, rule: Any, n: Numbers) -> Advantages:
    return _of_tokens(e, _of_turns(e, groups.leave_one_out(e.scores, e.valid))), None


def _remax(e: AdvantageInputs, rule: Any, n: Numbers) -> Advantages:
    if e.baseline is None:
        why = "remax compares with a greedy episode of each group; give their returns as `baseline`"
        raise BadValue(why, key="baseline")
    return _of_tokens(e, _of_turns(e, groups.over_baseline(e.scores, e.valid, e.baseline))), None


def _gigpo(e: AdvantageInputs, rule: Any, n: Numbers) -> Advantages:
    """The episode's group advantage plus `step_weight` times the turn's advantage, see `gigpo`."""
    of_episode = groups.group_advantages(e.scores, e.valid, normalize_std=rule.normalize_by_std)
    of_turn = gigpo.turn_advantages(
        gigpo.returns_to_go(e.turn_rewards, n["turn_gamma"]),
        e.state,
        jnp.repeat(jnp.arange(len(e.scores)), e.scores.shape[1]),
        e.turn_mask & e.valid.reshape(-1, 1),
        history=rule.history,
        history_power=n["history_power"],
        normalize_std=rule.normalize_by_std,
    )
    return _of_tokens(e, _of_turns(e, of_episode) + n["step_weight"] * of_turn), None


def _of_turns(e: AdvantageInputs, of_episode: Float[Array, "Gr M"]) -> Float[Array, "E T"]:
    return jnp.broadcast_to(of_episode.reshape(-1, 1), e.turn_mask.shape)


def _of_tokens(e: AdvantageInputs, of_turn: Float[Array, "E T"]) -> Float[Array, "E S"]:
    return jnp.take_along_axis(of_turn, e.turn, axis=1)


def _sum(e: AdvantageInputs, rule: Any, n: Numbers) -> Advantages:
    """The weighted sum of the terms, and the target of the one with a critic."""
    found, target = [], None
    for index, term in enumerate(rule.rules):
        numbers = {key.removeprefix(f"{index}."): x for key, x in n.items() if key.startswith(f"{index}.")}
        advantage, of_critic = ESTIMATORS[term.kind](e, term, numbers)
        found.append(numbers["weight"] * jnp.where(e.mask, advantage, 0.0))
        target = of_critic if of_critic is not None else target
    return functools.reduce(jnp.add, found), target


ESTIMATORS: dict[str, Callable[[AdvantageInputs, Any, Numbers], Advantages]] = {
    "gae": _gae,
    "turn_gae": _turn_gae,
    "bi_level_gae": _bi_level_gae,
    "reward_to_go": _reward_to_go,
    "grpo": _grpo,
    "rloo": _rloo,
    "remax": _remax,
    "gigpo": _gigpo,
    "sum": _sum,
}
"""The function of each kind, from (inputs, rule, numbers); its settings are the member of `config.algo.Advantage`."""
