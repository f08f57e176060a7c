"""Turn rewards and returns, with penalties and parts: one definition for learner, dynamic sampling and metrics.

Shapes: `E` episodes, `T` turns.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float

from agentrl_jax.algos.rewards import overlong_share
from agentrl_jax.rollout.trajectory import RolloutSettings, Trajectory

Numbers = Mapping[str, Float[Array, ""] | float]
ENVIRONMENT = "environment"


class NamedPart(NamedTuple):
    """A part of the reward; hashable."""

    name: str
    section: Any
    """A member of the union `config.rewards.RewardPart`, without its traced numbers."""
    tasks: tuple[int, ...] = ()
    """Tasks that have the part; empty: all."""


class RewardRule(struct.PyTreeNode):
    """What is added to the rewards of the environment."""

    format_penalty: Float[Array, ""] | float
    """Added for every turn with a format error, at most 0."""
    overlong_buffer: Float[Array, ""] | float = 0.0
    """Share of the maximum response length over which the overlong penalty grows; 0: no penalty."""
    overlong_penalty: Float[Array, ""] | float = 0.0
    """Subtracted from a turn whose response has the maximum length, at least 0."""
    numbers: Numbers = struct.field(default_factory=dict)
    """Traced numbers of the parts, by their names: tokens.weight."""
    parts: tuple[NamedPart, ...] = struct.field(pytree_node=False, default=())


class PartValues(NamedTuple):
    """A part of the reward of each turn, without its weight; 0 where it does not apply."""

    value: Float[Array, "E T"]
    weight: Float[Array, ""] | float
    applies: Bool[Array, " E"]


def reward_rule(settings: RolloutSettings, parts: tuple[NamedPart, ...]) -> RewardRule:
    """The rule whose numbers a rollout was given."""
    penalties = settings.format_penalty, settings.overlong_buffer, settings.overlong_penalty
    return RewardRule(*penalties, settings.reward_numbers, parts)


def part_values(trajectory: Trajectory, rule: RewardRule) -> dict[str, PartValues]:
    """The parts by name; first the reward of the environment, where no part is that."""
    found, everywhere = {}, jnp.ones(trajectory.num_turns.shape, bool)
    if all(part.section.kind != ENVIRONMENT for part in rule.parts):
        found[ENVIRONMENT] = PartValues(_played(trajectory, trajectory.turn.reward), 1.0, everywhere)
    for part in rule.parts:
        numbers = {key.rpartition(".")[2]: x for key, x in rule.numbers.items() if key.startswith(f"{part.name}.")}
        value = PARTS[part.section.kind](trajectory, part.section, numbers)
        applies = jnp.isin(trajectory.ids.task, jnp.array(part.tasks)) if part.tasks else everywhere
        value = jnp.where(applies[:, None], _played(trajectory, value), 0.0)
        found[part.name] = PartValues(value, numbers["weight"], applies)
    return found


def turn_rewards(trajectory: Trajectory, rule: RewardRule) -> Float[Array, "E T"]:
    """Reward of each turn with penalties and weighted parts; 0 for turns that were not played."""
    added = rule.format_penalty * trajectory.turn.format_error
    added -= rule.overlong_penalty * overlong(trajectory, rule)
    if not rule.parts:
        return _played(trajectory, trajectory.turn.reward + added)
    return _played(trajectory, added) + sum(part.weight * part.value for part in part_values(trajectory, rule).values())


def total_returns(trajectory: Trajectory, rule: RewardRule) -> Float[Array, " E"]:
    """Return of each episode, with penalties and parts."""
    return jnp.sum(turn_rewards(trajectory, rule), axis=1)


def overlong(trajectory: Trajectory, rule: RewardRule) -> Float[Array, "E T"]:
    """How far each response reaches into the overlong buffer, from 0 to 1 (`overlong_share`)."""
    return overlong_share(trajectory.response.length, trajectory.response.tokens.shape[-1], rule.overlong_buffer)


def _played(trajectory: Trajectory, values: Float[Array, "E T"]) -> Float[Array, "E T"]:
    return jnp.where(trajectory.turn_mask, values.astype(jnp.float32), 0.0)


def _overlong(trajectory: Trajectory, section: Any, numbers: Numbers) -> Float[Array, "E T"]:
    limit = trajectory.response.tokens.shape[-1]
    return overlong_share(trajectory.response.length, limit, numbers["buffer"])


def _truncated(trajectory: Trajectory, section: Any, numbers: Numbers) -> Bool[Array, "E T"]:
    last = jnp.arange(trajectory.turn.reward.shape[1]) == trajectory.num_turns[:, None] - 1
    return last & (trajectory.truncation > 0)[:, None]


def _cut(trajectory: Trajectory, section: Any, numbers: Numbers) -> Bool[Array, "E T"]:
    response = trajectory.response
    return (response.length == response.tokens.shape[-1]) & ~response.ended


PARTS: dict[str, Callable[[Trajectory, Any, Numbers], Any]] = {
    ENVIRONMENT: lambda trajectory, section, numbers: trajectory.turn.reward,
    "success": lambda trajectory, section, numbers: trajectory.turn.success,
    "format": lambda trajectory, section, numbers: trajectory.turn.format_error,
    "overlong": _overlong,
    "tokens": lambda trajectory, section, numbers: trajectory.response.length,
    "turns": lambda trajectory, section, numbers: trajectory.turn_mask,
    "truncated": _truncated,
    "cut": _cut,
    "info": lambda trajectory, section, numbers: trajectory.turn.info[section.key],
}
"""The function of each kind, from (trajectory, section, numbers); functions of the user are added."""
