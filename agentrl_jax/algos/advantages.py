"""Advantage estimators.

Letters: `N` rows of `S` positions. Arrays are aligned with the token that is predicted: `values[n, j]` is the critic's
value before token j is drawn, `rewards[n, j]` what is earned once it has been drawn, and `mask[n, j]` holds iff token j
was sampled from the policy. `Gr` groups of `M` members.

Rewards count at sampled positions only: `agentrl_jax.algos.rewards.place_rewards` puts them there.
"""

import jax
import jax.numpy as jnp

from agentrl_jax.algos import masked

STD_FLOOR = 1e-6
"""A group whose returns have a standard deviation of at most this carries no signal; also added to the divisor."""

_WHITEN_EPS = 1e-8


def gae(
    rewards: jax.Array,
    values: jax.Array,
    mask: jax.Array,
    *,
    gamma: jax.Array | float,
    lam: jax.Array | float,
    skip_unsampled: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16) over the tokens of multi-turn rows.

    Args:
        rewards: f32[N, S]
        values: f32[N, S]
        mask: bool[N, S]
        gamma: discount per position.
        lam: lambda of the estimator.
        skip_unsampled: True: observation and padding tokens are no steps; value and advantage are carried across them
            and rewards on them are ignored. False: RAGEN v1, where every position is a step and the values of tokens
            that were not sampled are 0, so that gamma or lambda below 1 discount observations too.

    Returns:
        Advantages f32[N, S] and returns (advantages + values) f32[N, S]; both 0 where `mask` does not hold.
    """
    values = jnp.where(mask, values, 0.0)
    steps = mask if skip_unsampled else jnp.ones_like(mask)

    def step(later, now):
        later_value, later_advantage = later
        reward, value, is_step = now
        advantage = reward + gamma * later_value - value + gamma * lam * later_advantage
        carried = jnp.where(is_step, value, later_value), jnp.where(is_step, advantage, later_advantage)
        return carried, advantage

    nothing = jnp.zeros_like(values[:, 0])
    _, advantages = jax.lax.scan(step, (nothing, nothing), (rewards.T, values.T, steps.T), reverse=True)
    return _on_mask(advantages.T, values, mask)


def bi_level_gae(
    rewards: jax.Array,
    values: jax.Array,
    mask: jax.Array,
    turn_end: jax.Array,
    *,
    gamma: jax.Array | float,
    lam: jax.Array | float,
    turn_gamma: jax.Array | float,
) -> tuple[jax.Array, jax.Array]:
    """GAE over turns, then inside each turn over its tokens (RAGEN's `bi_level_gae`).

    The turn ends form a chain of their own with discount `turn_gamma`; the return found there takes the place of the
    turn's reward in a token-level GAE that starts afresh at every turn end. Unlike the original, which takes every
    non-zero reward for a turn end, turn ends are given, so that turns and episodes without reward are ordinary cases.
    Tokens that were not sampled are no steps. A reward inside a turn (a KL penalty, say) stays inside that turn.

    Args:
        rewards: f32[N, S]; a turn's reward lies on its end.
        values: f32[N, S]
        mask: bool[N, S]
        turn_end: bool[N, S], the last sampled token of each turn; ignored where `mask` does not hold.
        gamma: discount per token inside a turn.
        lam: lambda of both levels.
        turn_gamma: discount per turn.

    Returns:
        Advantages f32[N, S] and returns (advantages + values) f32[N, S]; both 0 where `mask` does not hold.
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
    _, advantages = jax.lax.scan(step, (nothing,) * 4, inputs, reverse=True)
    return _on_mask(advantages.T, values, mask)


def _on_mask(advantages: jax.Array, values: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.where(mask, advantages, 0.0), jnp.where(mask, advantages + values, 0.0)


def group_mean(scores: jax.Array, intact: jax.Array) -> jax.Array:
    """Mean score f32[Gr] of the members that count (bool[Gr, M]) of each group f32[Gr, M]; 0 where none does."""
    return jnp.sum(jnp.where(intact, scores, 0.0), axis=1) / jnp.maximum(jnp.sum(intact, axis=1), 1)


def group_spread(scores: jax.Array, intact: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Distance of every score from its group's mean, f32[Gr, M], and the groups' unbiased standard deviation, f32[Gr].

    Both are exactly 0 for a group of equal scores, at any magnitude, and for a group of one.

    Args:
        scores: f32[Gr, M]
        intact: bool[Gr, M] members that count; the distance of the others is 0.
    """
    # Subtracting a member first makes equal scores exactly 0 before anything is rounded.
    shifted = scores - jnp.min(jnp.where(intact, scores, jnp.inf), axis=1, keepdims=True)
    centred = jnp.where(intact, shifted - group_mean(shifted, intact)[:, None], 0.0)
    variance = jnp.sum(jnp.square(centred), axis=1) / jnp.maximum(jnp.sum(intact, axis=1) - 1, 1)
    return centred, jnp.sqrt(variance)


def group_advantages(scores: jax.Array, intact: jax.Array, *, normalise_std: bool) -> jax.Array:
    """Group-relative advantages of GRPO (Shao et al. 2024, section 4.1.2) and Dr. GRPO (Liu et al. 2025, no std).

    (score - mean) / (std + 1e-6) with the unbiased standard deviation of the group, or just score - mean. Exactly 0
    where the standard deviation is at most 1e-6 and in groups of one, which have nothing to be compared with.

    Args:
        scores: f32[Gr, M], one return per episode.
        intact: bool[Gr, M] members that count; the others get 0.
        normalise_std: divide by the standard deviation.

    Returns:
        f32[Gr, M], to be spread over the sampled tokens of each episode.
    """
    centred, std = group_spread(scores, intact)
    advantages = centred / (std[:, None] + STD_FLOOR) if normalise_std else centred
    # Asked like this, a return that is not a number is not taken for one without signal.
    return jnp.where(intact & ~(std[:, None] <= STD_FLOOR), advantages, 0.0)


def whiten(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Shifts and scales `x` to mean 0 and variance 1 over the positions in `mask`, with Bessel's correction.

    (x - mean) * rsqrt(variance + 1e-8), as in verl's masked whitening. Constants and single positions become exactly 0.

    Args:
        x: f32[N, S]
        mask: bool[N, S]

    Returns:
        f32[N, S], 0 where `mask` does not hold.
    """
    mean, variance = masked.moments(x, mask)
    return jnp.where(mask, (x - mean) * jax.lax.rsqrt(variance + _WHITEN_EPS), 0.0)
