"""Advantages of tokens: generalized advantage estimation over tokens, over turns, and over both.

Shapes: `N` rows of `S` positions. Arrays are aligned with the token that is predicted: `values[n, j]` is the critic's
value before token j is sampled, `rewards[n, j]` is the reward earned by sampling it, and `mask[n, j]` is true iff token
j was sampled from the policy.

Rewards count at sampled positions only: `agentrl_jax.algos.rewards.place_rewards` puts them there.

After the last sampled token the value is 0, because the episode has terminated. Where it was truncated, `final_value`
f32[N] replaces that 0: the critic's value of the state that was reached (Pardo et al. 2018, arXiv 1712.00378).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from agentrl_jax.algos import masked
from agentrl_jax.algos.masked import Devices

_WHITEN_EPS = 1e-8


def gae(
    rewards: Float[Array, "N S"],
    values: Float[Array, "N S"],
    mask: Bool[Array, "N S"],
    *,
    gamma: jax.Array | float,
    lam: jax.Array | float,
    final_value: Float[Array, " N"] | Float[Array, ""] | float = 0.0,
) -> tuple[Float[Array, "N S"], Float[Array, "N S"]]:
    """Generalized advantage estimation (Schulman et al. 2016, eq. 16) over the tokens of multi-turn rows.

    Observation tokens and padding are not steps: value and advantage pass over them unchanged, and rewards on them are
    ignored.

    `gamma` discounts per position. Returns the advantages and the returns (advantages + values); both are 0 where
    `mask` is false.
    """
    values = jnp.where(mask, values, 0.0)

    def step(later, now):
        later_value, later_advantage = later
        reward, value, is_step = now
        advantage = reward + gamma * later_value - value + gamma * lam * later_advantage
        carried = jnp.where(is_step, value, later_value), jnp.where(is_step, advantage, later_advantage)
        return carried, advantage

    nothing = jnp.zeros_like(values[:, 0])
    _, advantages = jax.lax.scan(step, (nothing + final_value, nothing), (rewards.T, values.T, mask.T), reverse=True)
    return _on_mask(advantages.T, values, mask)


def turn_gae(
    rewards: Float[Array, "N S"],
    values: Float[Array, "N S"],
    mask: Bool[Array, "N S"],
    turn_end: Bool[Array, "N S"],
    *,
    gamma: jax.Array | float,
    lam: jax.Array | float,
    final_value: Float[Array, " N"] | Float[Array, ""] | float = 0.0,
) -> tuple[Float[Array, "N S"], Float[Array, "N S"]]:
    """GAE whose steps are turns: all tokens of a turn share one advantage (VAGEN's `turn_wise_gae`, Turn-PPO).

    The value of a turn is the value before its first sampled token; its reward is the sum of the rewards in it.
    `turn_end` marks the last sampled token of each turn, and is ignored where `mask` is false; sampled tokens after the
    last end form one more turn. `gamma` discounts per turn. Returns the advantages, and advantage plus value of the
    turn as the target of each of its tokens; both are 0 where `mask` is false.
    """
    values = jnp.where(mask, values, 0.0)
    rewards = jnp.where(mask, rewards, 0.0)
    ends = turn_end & mask
    # A token opens a turn if no sampled token comes between it and the previous turn end.
    turn = jnp.cumsum(ends, axis=1) - ends
    before = jnp.pad(jax.lax.cummax(jnp.where(mask, turn, -1), axis=1)[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    opens = mask & (before < turn)

    def step(later, now):
        next_value, next_advantage, earned = later
        reward, value, is_end, is_open = now
        earned = reward + jnp.where(is_end, 0.0, earned)
        advantage = earned + gamma * next_value - value + gamma * lam * next_advantage
        carried = jnp.where(is_open, value, next_value), jnp.where(is_open, advantage, next_advantage)
        return (*carried, jnp.where(is_open, 0.0, earned)), advantage

    nothing = jnp.zeros_like(values[:, 0])
    inputs = (rewards.T, values.T, ends.T, opens.T)
    _, of_turns = jax.lax.scan(step, (nothing + final_value, nothing, nothing), inputs, reverse=True)
    first = jax.lax.cummax(jnp.where(opens, jnp.arange(mask.shape[1]), 0), axis=1)
    advantages, of_first = (jnp.take_along_axis(x, first, axis=1) for x in (of_turns.T, values))
    return _on_mask(advantages, of_first, mask)


def bi_level_gae(
    rewards: Float[Array, "N S"],
    values: Float[Array, "N S"],
    mask: Bool[Array, "N S"],
    turn_end: Bool[Array, "N S"],
    *,
    gamma: jax.Array | float,
    lam: jax.Array | float,
    turn_gamma: jax.Array | float,
    final_value: Float[Array, " N"] | Float[Array, ""] | float = 0.0,
) -> tuple[Float[Array, "N S"], Float[Array, "N S"]]:
    """GAE over turns, then inside each turn over its tokens (RAGEN's `bi_level_gae`).

    GAE first runs over the turn ends alone, with discount `turn_gamma`. The returns found there replace the turns'
    rewards in a token-level GAE that restarts at every turn end. The original takes every non-zero reward for a turn
    end; here turn ends are given, so turns and episodes without reward need no special case. Tokens that were not
    sampled are not steps. A reward inside a turn (for example a KL penalty) stays inside that turn.
    `turn_end` is as in `turn_gae`; a turn's reward is at its end. `gamma` discounts per token inside a turn,
    `turn_gamma` per turn; `lam` serves both levels. Returns as `gae` does.
    """
    values = jnp.where(mask, values, 0.0)

    def step(later, now):
        turn_value, turn_advantage, later_value, later_advantage = later
        reward, value, sampled, ends = now
        of_turn = reward + turn_gamma * turn_value - value + turn_gamma * lam * turn_advantage
        of_token = reward + gamma * later_value - value + gamma * lam * later_advantage
        advantage = jnp.where(ends, of_turn, of_token)
        carried = (
            jnp.where(ends, value, turn_value),
            jnp.where(ends, of_turn, turn_advantage),
            jnp.where(sampled, value, later_value),
            jnp.where(sampled, advantage, later_advantage),
        )
        return carried, advantage

    nothing = jnp.zeros_like(values[:, 0])
    inputs = (rewards.T, values.T, mask.T, (turn_end & mask).T)
    _, advantages = jax.lax.scan(step, (nothing + final_value, *(nothing,) * 3), inputs, reverse=True)
    return _on_mask(advantages.T, values, mask)


def _on_mask(advantages: jax.Array, values: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.where(mask, advantages, 0.0), jnp.where(mask, advantages + values, 0.0)


def whiten(x: Float[Array, "N S"], mask: Bool[Array, "N S"], devices: Devices | None = None) -> Float[Array, "N S"]:
    """Shifts and scales `x` to mean 0 and variance 1 over the positions in `mask`, with Bessel's correction.

    (x - mean) * rsqrt(variance + 1e-8), as in verl's masked whitening. Constant inputs and single positions give
    exactly 0.
    The result is 0 where `mask` is false.
    """
    mean, variance = masked.moments(x, mask, devices)
    return jnp.where(mask, (x - mean) * jax.lax.rsqrt(variance + _WHITEN_EPS), 0.0)
