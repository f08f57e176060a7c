"""A policy and its critic as one tree of parameters.

Letters: `N` rows, `S` positions, `D` width. Outputs over [N, S] are aligned with the token they speak of: entry j is
computed from the tokens before j.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from agentrl_jax.models import decoder

CRITICS = ("none", "shared", "separate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorCritic:
    """Shapes of a policy and its critic.

    Attributes:
        decoder: shape of the policy, and of a separate critic.
        critic: "none"; "shared": a linear head on the policy's last hidden state; "separate": a decoder of its own.
    """

    decoder: decoder.DecoderConfig
    critic: str

    def __post_init__(self):
        if self.critic not in CRITICS:
            raise ValueError(f"critic {self.critic!r} is unknown; choose one of {', '.join(CRITICS)}")


@struct.dataclass
class TokenScores:
    """What the learner needs to know about each token of N rows.

    Attributes:
        logprob: f32[N, S] log-probability of the token; 0 at position 0.
        entropy: f32[N, S] entropy of the distribution it was drawn from.
        value: f32[N, S] critic's value before the token; 0 without a critic.
    """

    logprob: jax.Array
    entropy: jax.Array
    value: jax.Array


def init_params(key: jax.Array, model: ActorCritic) -> dict[str, Any]:
    """Fresh parameters: "policy", and "critic" with "head" f32[D], "bias" f32[] and perhaps its own "decoder".

    A separate critic starts as a copy of the policy's decoder.
    """
    params: dict[str, Any] = {"policy": decoder.init_params(key, model.decoder)}
    if model.critic != "none":
        params["critic"] = {"head": jnp.zeros(model.decoder.width, jnp.float32), "bias": jnp.zeros((), jnp.float32)}
    if model.critic == "separate":
        params["critic"]["decoder"] = jax.tree.map(jnp.copy, params["policy"])
    return params


def score_tokens(params: dict[str, Any], model: ActorCritic, tokens: jax.Array, temperature: jax.Array) -> TokenScores:
    """Scores every token of N rows in one parallel forward pass.

    Args:
        params: as from `init_params`.
        model: shapes.
        tokens: i32[N, S], padded on the right.
        temperature: f32[N], the one each row was sampled at; rows sampled greedily (0) are scored at 1.
    """
    hidden = decoder.forward(params["policy"], model.decoder, tokens)
    scaled = decoder.logits(params["policy"], hidden[:, :-1])
    scaled = scaled / jnp.where(temperature > 0, temperature, 1.0)[:, None, None]
    logprobs = jax.nn.log_softmax(scaled)
    chosen = jnp.take_along_axis(logprobs, tokens[:, 1:, None], axis=-1)[..., 0]
    entropy = -jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1)
    return TokenScores(logprob=_shift(chosen), entropy=_shift(entropy), value=values(params, model, tokens, hidden))


def logprobs(params: decoder.Params, model: ActorCritic, tokens: jax.Array, temperature: jax.Array) -> jax.Array:
    """Log-probabilities f32[N, S] of the tokens under a policy alone (a reference, say)."""
    return score_tokens({"policy": params}, dataclasses.replace(model, critic="none"), tokens, temperature).logprob


def values(params: dict[str, Any], model: ActorCritic, tokens: jax.Array, hidden: jax.Array | None = None) -> jax.Array:
    """Values f32[N, S] before each token; `hidden` spares a shared critic its forward pass."""
    if model.critic == "none":
        return jnp.zeros(tokens.shape, jnp.float32)
    critic = params["critic"]
    if model.critic == "separate" or hidden is None:
        hidden = decoder.forward(critic.get("decoder", params["policy"]), model.decoder, tokens)
    return _shift(hidden[:, :-1].astype(jnp.float32) @ critic["head"] + critic["bias"])


def _shift(x: jax.Array) -> jax.Array:
    return jnp.pad(x, ((0, 0), (1, 0)))
