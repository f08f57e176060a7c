"""Losses of preference pairs: a chosen and a rejected answer to the same prompt.

Shapes: `P` pairs; the last axis has the chosen answer, then the rejected one.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

METRICS = ("chosen_logprob", "rejected_logprob", "chosen_gain", "margin", "accuracy")
"""Names of what `loss` measures."""


def loss(
    policy: Float[Array, "P 2"],
    reference: Float[Array, "P 2"],
    *,
    kind: Literal["sigmoid", "hinge", "ipo", "none"],
    beta: float,
) -> tuple[Float[Array, " P"], dict[str, Float[Array, " P"]]]:
    """The loss of each pair, and its metrics, from log-probabilities of the answers (sums or means over tokens).

    With the margin h = (policy - reference) of the chosen answer minus that of the rejected one:
    sigmoid: -log sigmoid(beta h) (Rafailov et al. 2023, arXiv 2305.18290, equation 7);
    hinge: max(0, 1 - beta h) (Zhao et al. 2023, arXiv 2305.10425);
    ipo: (h - 1 / (2 beta))^2 (Azar et al. 2023, arXiv 2310.12036, equation 17);
    none: 0.

    Metrics: log-probabilities of both answers under the policy, that of the chosen one minus its reference, the margin
    h, and whether it is positive.
    """
    gained = policy - reference
    margin = gained[:, 0] - gained[:, 1]
    if kind == "sigmoid":
        losses = jax.nn.softplus(-beta * margin)
    elif kind == "hinge":
        losses = jax.nn.relu(1 - beta * margin)
    elif kind == "ipo":
        losses = jnp.square(margin - 1 / (2 * beta))
    else:
        losses = jnp.zeros_like(margin)
    measured = (policy[:, 0], policy[:, 1], gained[:, 0], margin, (margin > 0).astype(jnp.float32))
    return losses, dict(zip(METRICS, measured))
