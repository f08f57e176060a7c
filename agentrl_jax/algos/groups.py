"""Advantages relative to a group of episodes with the same initial state.

Shapes: `Gr` groups of `M` episodes, one return per episode. Each function gives one number per episode, which is then
assigned to all its sampled tokens. Episodes that do not count (their environment failed) get 0 and are left out of all
means.
"""

import jax
import jax.numpy as jnp

STD_FLOOR = 1e-6
"""A group whose returns have a standard deviation of at most this gives no signal; also added to the divisor."""


def group_mean(scores: jax.Array, valid: jax.Array) -> jax.Array:
    """Mean f32[Gr] of each group's scores f32[Gr, M] over the episodes that count, bool[Gr, M]; 0 if none does."""
    return jnp.sum(jnp.where(valid, scores, 0.0), axis=1) / jnp.maximum(jnp.sum(valid, axis=1), 1)


def center_and_std(scores: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Scores minus their group's mean, f32[Gr, M], and the groups' unbiased standard deviations, f32[Gr].

    Both are exactly 0 for a group of equal scores, at any magnitude, and for a group of one.

    Args:
        scores: f32[Gr, M]
        valid: bool[Gr, M] episodes that count; the others get 0.
    """
    # Subtracting the smallest score first makes equal scores exactly 0 before anything is rounded.
    shifted = scores - jnp.min(jnp.where(valid, scores, jnp.inf), axis=1, keepdims=True)
    centered = jnp.where(valid, shifted - group_mean(shifted, valid)[:, None], 0.0)
    variance = jnp.sum(jnp.square(centered), axis=1) / jnp.maximum(jnp.sum(valid, axis=1) - 1, 1)
    return centered, jnp.sqrt(variance)


def group_advantages(scores: jax.Array, valid: jax.Array, *, normalize_std: bool) -> jax.Array:
    """Group-relative advantages of GRPO (Shao et al. 2024, section 4.1.2) and Dr. GRPO (Liu et al. 2025, no std).

    (score - mean) / (std + 1e-6) with the unbiased standard deviation of the group, or just score - mean. Exactly 0
    where the standard deviation is at most 1e-6 and in groups of one.

    Args:
        scores: f32[Gr, M], one return per episode.
        valid: bool[Gr, M] episodes that count; the others get 0.
        normalize_std: divide by the standard deviation.

    Returns:
        f32[Gr, M], to be assigned to all sampled tokens of each episode.
    """
    centered, std = center_and_std(scores, valid)
    advantages = centered / (std[:, None] + STD_FLOOR) if normalize_std else centered
    # Written as a negation so that a NaN return stays NaN instead of becoming 0.
    return jnp.where(valid & ~(std[:, None] <= STD_FLOOR), advantages, 0.0)


def leave_one_out(scores: jax.Array, valid: jax.Array) -> jax.Array:
    """RLOO: each score minus the mean of the *other* episodes (Kool et al. 2019; Ahmadian et al. 2024).

    The baseline of an episode does not depend on it, so the policy gradient is unbiased. The advantage is n / (n - 1)
    times the score minus the group mean; exactly 0 for equal scores, and for a group of one, which has no baseline.

    Args:
        scores: f32[Gr, M]
        valid: bool[Gr, M]

    Returns:
        f32[Gr, M]
    """
    number = jnp.sum(valid, axis=1, keepdims=True)
    return center_and_std(scores, valid)[0] * number / jnp.maximum(number - 1, 1)


def over_baseline(scores: jax.Array, valid: jax.Array, baseline: jax.Array) -> jax.Array:
    """ReMax: each score minus that of one greedy episode of the same group (Li et al. 2024).

    Args:
        scores: f32[Gr, M]
        valid: bool[Gr, M]
        baseline: f32[Gr], return of the greedy episode; NaN if that episode failed, then the group's advantages are 0.

    Returns:
        f32[Gr, M]
    """
    known = valid & jnp.isfinite(baseline)[:, None]
    return jnp.where(known, scores - jnp.where(known, baseline[:, None], 0.0), 0.0)


def spread_weights(scores: jax.Array, valid: jax.Array) -> jax.Array:
    """Soft reweighting of RAGEN v2: group std / (largest std + 1e-6), f32[Gr] in [0, 1)."""
    std = center_and_std(scores, valid)[1]
    return std / (jnp.max(std, initial=0.0) + STD_FLOOR)


def length_weights(lengths: jax.Array) -> jax.Array:
    """Length weighting of RAGEN (`grpo_advantage_length_weight`): f32[E] factors of the episodes' advantages.

    The factor is the mean length of the episodes that have trained tokens, divided by the episode's length; 0 for
    episodes without trained tokens. With `token_mean` every episode then has about the same weight.

    Args:
        lengths: i32[E] number of trained tokens of each episode.
    """
    some = lengths > 0
    mean = jnp.sum(lengths) / jnp.maximum(jnp.sum(some), 1)
    return jnp.where(some, mean / jnp.maximum(lengths, 1), 0.0)
