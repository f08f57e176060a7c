"""On-policy distillation: losses per token of a student that sampled them, towards a teacher that reads more.

With log-probabilities s of the student and t of the teacher for a sampled token, the gap t - s estimates minus the
reverse KL divergence KL(student || teacher) of the token (Agarwal et al. 2024, arXiv 2306.13649, GKD). The teacher of
self-distillation is the same policy, or an average of its parameters, after a privileged prompt (Huebotter et al. 2026,
arXiv 2601.20802, SDPO; Zhao et al. 2026, arXiv 2601.18734, OPSD). No gradient reaches the teacher.

`algos.losses.token_weights` turns losses per token into one number; tokens that were not sampled have weight 0.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from agentrl_jax.algos.losses import MAX_LOG_RATIO

Scores = Float[Array, "*shape"]


def gap(logprob: Scores, teacher_logprob: Scores) -> Scores:
    """t - s in nats, without a gradient: above 0 where the teacher finds the sampled token likelier than the student.

    It is the token's advantage in `sampled_loss`, and on average minus the reverse KL divergence.
    """
    return jax.lax.stop_gradient(teacher_logprob - logprob)


def sampled_loss(logprob: Scores, old_logprob: Scores, advantage: Scores, *, cap: float) -> Scores:
    """-A min(r, cap) s: the policy gradient of the advantage A = t - s (SDPO's sampled-token mode).

    r = exp(s - old) corrects for a policy that has changed since it sampled the token; the weight min(r, cap) and A
    have no gradient. With r = 1, the mean gradient over sampled tokens is that of KL(student || teacher) at the states
    that were visited, because the mean of the gradient of s is 0. Its value is no divergence.
    """
    log_ratio = jnp.clip(logprob - old_logprob, -MAX_LOG_RATIO, MAX_LOG_RATIO)
    weight = jnp.minimum(jnp.exp(log_ratio), cap)
    return -jax.lax.stop_gradient(advantage * weight) * logprob


def gate(advantage: Scores, slope: float) -> Scores:
    """1 / (1 + exp(-slope A)), without a gradient: grows with the advantage A = t - s, 1/2 where the two agree.

    SDAR (Lu et al. 2026, arXiv 2605.15155) multiplies a token's distillation loss by it: what the teacher endorses
    counts more, what it rejects is softly damped, because a rejection may be the teacher's own mistake.
    """
    return jax.nn.sigmoid(slope * jax.lax.stop_gradient(advantage))


def moving_average(teacher: Any, policy: Any, rate: Float[Array, ""]) -> Any:
    """(1 - rate) teacher + rate policy, leaf by leaf (SDPO's teacher; mean teachers: Tarvainen and Valpola 2017)."""
    return jax.tree.map(lambda old, new: old + rate.astype(old.dtype) * (new - old), teacher, policy)
