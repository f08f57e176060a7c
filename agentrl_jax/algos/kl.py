"""Estimates of the KL divergence from a reference policy, and the controllers of its coefficient."""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float

from agentrl_jax.algos.vocab_sums import highest, total
from agentrl_jax.errors import BadValue

Kind = Literal["k1", "k2", "k3", "abs", "mse", "full"]

_MAX_LOG_RATIO = 20.0
_MAX_K3 = 10.0
_MAX_RELATIVE_ERROR = 0.2


def estimate(
    logprob: Float[Array, "*shape"], ref_logprob: Float[Array, "*shape"], kind: Kind
) -> Float[Array, "*shape"]:
    """Per-token estimate of KL(policy || reference) from tokens sampled by the policy (Schulman 2020).

    With d = logprob - ref_logprob: k1 = d (unbiased, any sign), k2 = d^2 / 2 (never negative), k3 = exp(-d) + d - 1
    (unbiased, never negative; d clamped to +-20 and the estimate to +-10, as verl's `low_var_kl`), abs = |d|. mse is
    verl's name for k2. Gradients reach `logprob` only.

    As a loss on tokens sampled from the policy itself, k2 has the gradient of the divergence. The gradient of k1 does
    not depend on the reference and is 0 in expectation (k1 exists for parity, as in the preset `starpo_grpo`). The
    gradient of k3 is biased. Raises ValueError for any other kind; for full, which needs logits, see `full`.
    """
    difference = logprob - jax.lax.stop_gradient(ref_logprob)
    if kind == "k1":
        return difference
    if kind in ("k2", "mse"):
        return 0.5 * jnp.square(difference)
    if kind == "abs":
        return jnp.abs(difference)
    if kind == "k3":
        backward = jnp.clip(-difference, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)
        return jnp.clip(jnp.expm1(backward) - backward, -_MAX_K3, _MAX_K3)
    raise BadValue(f"the estimator is {kind!r}; expected k1, k2, k3, abs or mse", key="estimator", value=kind)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def full(
    logits: Float[Array, "*shape V"], ref_logits: Float[Array, "*shape V"], axis_name: str = ""
) -> Float[Array, "*shape"]:
    """KL(policy || reference) over the whole vocabulary, at least 0.

    Its gradient is that of the divergence at the visited states, without sampling noise; none reaches `ref_logits`.
    Inside a `jax.shard_map`, the devices of the mesh axis `axis_name` may each have V logits of the vocabulary.
    """
    return _full_forward(logits, ref_logits, axis_name)[0]


def _full_forward(logits, ref_logits, axis_name):
    policy, reference = (_log_softmax(x, axis_name) for x in (logits, ref_logits))
    divergence = total(jnp.exp(policy) * (policy - reference), axis_name)
    return divergence, (policy, reference, divergence)


def _full_backward(axis_name, residuals, cotangent):
    del axis_name
    policy, reference, divergence = residuals
    # d KL / d logit = p (log p - log q - KL)
    return cotangent[..., None] * jnp.exp(policy) * (policy - reference - divergence[..., None]), None


full.defvjp(_full_forward, _full_backward)


def _log_softmax(logits: Float[Array, "*shape V"], axis_name: str) -> Float[Array, "*shape V"]:
    shifted = logits - highest(logits, axis_name)[..., None]
    return shifted - jnp.log(total(jnp.exp(shifted), axis_name))[..., None]


class KLController(struct.PyTreeNode):
    """Coefficient of the KL term."""

    coef: Float[Array, ""]


def update(
    state: KLController,
    observed_kl: Float[Array, ""] | float,
    num_steps: jax.Array | float,
    target: jax.Array | float,
    horizon: jax.Array | float,
) -> KLController:
    """Adapts the coefficient so that the KL stays near `target` (Ziegler et al. 2019, section 2.2).

    coef * (1 + clip(kl / target - 1, -0.2, 0.2) * num_steps / horizon), where `num_steps` and `horizon` are numbers of
    episodes: those since the last update, and the time scale of the adaptation. `num_steps` must be below 5 *
    `horizon`, or the coefficient changes its sign; an infinite horizon keeps it fixed. `observed_kl` is the mean of the
    batch; if it is not finite (a batch without tokens), nothing changes.
    """
    error = jnp.clip(observed_kl / target - 1.0, -_MAX_RELATIVE_ERROR, _MAX_RELATIVE_ERROR)
    factor = 1.0 + error * num_steps / horizon
    return KLController(coef=state.coef * jnp.where(jnp.isfinite(observed_kl), factor, 1.0))
