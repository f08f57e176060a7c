"""Advantages relative to a group of episodes with the same initial state.

Shapes: `Gr` groups of `M` episodes, one return (`scores`) per episode. The advantage of an episode is assigned to all
its sampled tokens. Episodes that are not `valid` (their environment failed) get 0 and are left out of all means.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.algos.masked import Devices

STD_FLOOR = 1e-6
"""A group whose returns have a standard deviation of at most this gives no signal; also added to the divisor."""


def group_mean(scores: Float[Array, "Gr M"], valid: Bool[Array, "Gr M"]) -> Float[Array, " Gr"]:
    """Mean of each group's valid scores; 0 if there is none."""
    return jnp.sum(jnp.where(valid, scores, 0.0), axis=1) / jnp.maximum(jnp.sum(valid, axis=1), 1)


def center_and_std(
    scores: Float[Array, "Gr M"], valid: Bool[Array, "Gr M"]
) -> tuple[Float[Array, "Gr M"], Float[Array, " Gr"]]:
    """Scores minus their group's mean, and the groups' unbiased standard deviations.

    Both are exactly 0 for a group of equal scores, at any magnitude, and for a group of one.
    """
    # Subtracting the smallest score first makes equal scores exactly 0 before anything is rounded.
    shifted = scores - jnp.min(jnp.where(valid, scores, jnp.inf), axis=1, keepdims=True)
    centered = jnp.where(valid, shifted - group_mean(shifted, valid)[:, None], 0.0)
    variance = jnp.sum(jnp.square(centered), axis=1) / jnp.maximum(jnp.sum(valid, axis=1) - 1, 1)
    return centered, jnp.sqrt(variance)


def group_advantages(
    scores: Float[Array, "Gr M"], valid: Bool[Array, "Gr M"], *, normalize_std: bool
) -> Float[Array, "Gr M"]:
    """Group-relative advantages of GRPO (Shao et al. 2024, section 4.1.2) and Dr. GRPO (Liu et al. 2025, no std).

    (score - mean) / (std + 1e-6) with the unbiased standard deviation of the group, or just score - mean. Exactly 0
    where the standard deviation is at most 1e-6 and in groups of one.
    """
    centered, std = center_and_std(scores, valid)
    advantages = centered / (std[:, None] + STD_FLOOR) if normalize_std else centered
    # Written as a negation so that a NaN return stays NaN instead of becoming 0.
    return jnp.where(valid & ~(std[:, None] <= STD_FLOOR), advantages, 0.0)


def leave_one_out(scores: Float[Array, "Gr M"], valid: Bool[Array, "Gr M"]) -> Float[Array, "Gr M"]:
    """RLOO: each score minus the mean of the *other* episodes (Kool et al. 2019; Ahmadian et al. 2024).

    The baseline of an episode does not depend on it, so the policy gradient is unbiased. The advantage is n / (n - 1)
    times the score minus the group mean; exactly 0 for equal scores, and for a group of one, which has no baseline.
    """
    number = jnp.sum(valid, axis=1, keepdims=True)
    return center_and_std(scores, valid)[0] * number / jnp.maximum(number - 1, 1)


def over_baseline(
    scores: Float[Array, "Gr M"], valid: Bool[Array, "Gr M"], baseline: Float[Array, " Gr"]
) -> Float[Array, "Gr M"]:
    """ReMax: each score minus that of one greedy episode of the same group (Li et al. 2024).

    `baseline` is NaN where the greedy episode failed; then the group's advantages are 0.
    """
    known = valid & jnp.isfinite(baseline)[:, None]
    return jnp.where(known, scores - jnp.where(known, baseline[:, None], 0.0), 0.0)


def spread_weights(
    scores: Float[Array, "Gr M"], valid: Bool[Array, "Gr M"], devices: Devices | None = None
) -> Float[Array, " Gr"]:
    """Soft reweighting of RAGEN v2: group std / (largest std + 1e-6), in [0, 1)."""
    std = center_and_std(scores, valid)[1]
    largest = jnp.max(std, initial=0.0)
    return std / ((largest if devices is None else devices.largest(largest)) + STD_FLOOR)


def length_weights(lengths: Int[Array, " E"], devices: Devices | None = None) -> Float[Array, " E"]:
    """Length weighting of RAGEN (`grpo_advantage_length_weight`): factors of the episodes' advantages.

    `lengths` are numbers of trained tokens. The factor is the mean length of the episodes that have any, divided by the
    episode's length; 0 for episodes without. With `token_mean` every episode then has about the same weight.
    """
    some = lengths > 0
    both = jnp.sum(lengths), jnp.sum(some)
    tokens, number = both if devices is None else devices.sum(both)
    mean = tokens / jnp.maximum(number, 1)
    return jnp.where(some, mean / jnp.maximum(lengths, 1), 0.0)
