"""Advantages relative to a group of episodes that began alike.

Shapes: `Gr` groups of `M` members, one return per episode. Each function gives one number per episode, to be spread
over its sampled tokens. Members that do not count (their environment broke) get 0 and are compared with nobody.
"""

import jax
import jax.numpy as jnp

STD_FLOOR = 1e-6
"""A group whose returns have a standard deviation of at most this carries no signal; also added to the divisor."""


def group_mean(scores: jax.Array, valid: jax.Array) -> jax.Array:
    """Mean score f32[Gr] of the members that count (bool[Gr, M]) of each group f32[Gr, M]; 0 where none does."""
    return jnp.sum(jnp.where(valid, scores, 0.0), axis=1) / jnp.maximum(jnp.sum(valid, axis=1), 1)


def center_and_std(scores: jax.Array, valid: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Distance of every score from its group's mean, f32[Gr, M], and the groups' unbiased standard deviation, f32[Gr].

    Both are exactly 0 for a group of equal scores, at any magnitude, and for a group of one.

    Args:
        scores: f32[Gr, M]
        valid: bool[Gr, M] members that count; the distance of the others is 0.
    """
    # Subtracting a member first makes equal scores exactly 0 before anything is rounded.
    shifted = scores - jnp.min(jnp.where(valid, scores, jnp.inf), axis=1, keepdims=True)
    centered = jnp.where(valid, shifted - group_mean(shifted, valid)[:, None], 0.0)
    variance = jnp.sum(jnp.square(centered), axis=1) / jnp.maximum(jnp.sum(valid, axis=1) - 1, 1)
    return centered, jnp.sqrt(variance)


def group_advantages(scores: jax.Array, valid: jax.Array, *, normalize_std: bool) -> jax.Array:
    """Group-relative advantages of GRPO (Shao et al. 2024, section 4.1.2) and Dr. GRPO (Liu et al. 2025, no std).

    (score - mean) / (std + 1e-6) with the unbiased standard deviation of the group, or just score - mean. Exactly 0
    where the standard deviation is at most 1e-6 and in groups of one, which have nothing to be compared with.

    Args:
        scores: f32[Gr, M], one return per episode.
        valid: bool[Gr, M] members that count; the others get 0.
        normalize_std: divide by the standard deviation.

    Returns:
        f32[Gr, M], to be spread over the sampled tokens of each episode.
    """
    centered, std = center_and_std(scores, valid)
    advantages = centered / (std[:, None] + STD_FLOOR) if normalize_std else centered
    # Asked like this, a return that is not a number is not taken for one without signal.
    return jnp.where(valid & ~(std[:, None] <= STD_FLOOR), advantages, 0.0)


def leave_one_out(scores: jax.Array, valid: jax.Array) -> jax.Array:
    """RLOO: each score minus the mean of the *other* members (Kool et al. 2019; Ahmadian et al. 2024).

    As the baseline of a member does not depend on it, the policy gradient has no bias. It is n / (n - 1) times the
    distance from the mean; exactly 0 for equal scores, and for a group of one, which has no baseline.

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
        baseline: f32[Gr], return of the greedy episode; not a number where that episode broke, which leaves the group
            without advantages.

    Returns:
        f32[Gr, M]
    """
    known = valid & jnp.isfinite(baseline)[:, None]
    return jnp.where(known, scores - jnp.where(known, baseline[:, None], 0.0), 0.0)


def spread_weights(scores: jax.Array, valid: jax.Array) -> jax.Array:
    """Soft reweighting of RAGEN v2: a group's standard deviation over the largest one plus 1e-6, f32[Gr] in [0, 1)."""
    std = center_and_std(scores, valid)[1]
    return std / (jnp.max(std, initial=0.0) + STD_FLOOR)


def length_weights(lengths: jax.Array) -> jax.Array:
    """Length weighting of RAGEN (`grpo_advantage_length_weight`): f32[E] factors of the episodes' advantages.

    The mean length of episodes that have any trained token, over the episode's own length; 0 for those without one.
    Under `token_mean` every episode then counts about the same.

    Args:
        lengths: i32[E] trained tokens of each episode.
    """
    some = lengths > 0
    mean = jnp.sum(lengths) / jnp.maximum(jnp.sum(some), 1)
    return jnp.where(some, mean / jnp.maximum(lengths, 1), 0.0)
