"""A policy and its critic as one tree of parameters.

Letters: `N` rows of `S` tokens, of which `K` are scored, `D` width. Outputs over [N, K] speak of the token at
`position` and are computed from the tokens before it. Vocabulary logits are made for these K tokens only.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from agentrl_jax.models import decoder
from agentrl_jax.models.shape import DecoderConfig

CRITICS = ("none", "shared", "separate")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorCritic:
    """Shapes of a policy and its critic.

    Attributes:
        decoder: shape of the policy, and of a separate critic.
        critic: "none"; "shared": a linear head on the policy's last hidden state; "separate": a decoder of its own.
        common: number of first tokens that are the same in every row that is scored, see `decoder.forward`.
    """

    decoder: DecoderConfig
    critic: str
    common: int = 0

    def __post_init__(self):
        if self.critic not in CRITICS:
            raise ValueError(f"critic {self.critic!r} is unknown; choose one of {', '.join(CRITICS)}")


class TokenScores(struct.PyTreeNode):
    """What the learner needs to know about K tokens of N rows.

    Attributes:
        logprob: f32[N, K] log-probability of the token.
        entropy: f32[N, K] entropy of the distribution it was drawn from.
        value: f32[N, K] critic's value before the token; 0 without a critic.
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
        params["critic"]["decoder"] = params["policy"]
    return critic_from_policy(params)


def critic_from_policy(params: dict[str, Any]) -> dict[str, Any]:
    """The parameters with a separate critic's decoder as a copy of the policy's, as RAGEN starts it; others as is."""
    if "decoder" not in params.get("critic", {}):
        return params
    return {**params, "critic": {**params["critic"], "decoder": jax.tree.map(jnp.copy, params["policy"])}}


def score_tokens(
    params: dict[str, Any], model: ActorCritic, tokens: jax.Array, position: jax.Array, temperature: jax.Array
) -> TokenScores:
    """Scores K tokens of each of N rows in one parallel forward pass.

    Args:
        params: as from `init_params`.
        model: shapes.
        tokens: i32[N, S], padded on the right.
        position: i32[N, K] positions of the tokens to score, each at least 1.
        temperature: f32[N], the one each row was sampled at; rows sampled greedily (0) are scored at 1.
    """
    hidden = _before(decoder.forward(params["policy"], model.decoder, tokens, common=model.common), position)
    scaled = decoder.logits(params["policy"], hidden)
    scaled = scaled / jnp.where(temperature > 0, temperature, 1.0)[:, None, None]
    logprobs = jax.nn.log_softmax(scaled)
    token = jnp.take_along_axis(tokens, position, axis=1)
    return TokenScores(
        logprob=jnp.take_along_axis(logprobs, token[..., None], axis=-1)[..., 0],
        entropy=-jnp.sum(jnp.exp(logprobs) * logprobs, axis=-1),
        value=_value(params, model, tokens, position, hidden),
    )


def logprobs(
    params: decoder.Params, model: ActorCritic, tokens: jax.Array, position: jax.Array, temperature: jax.Array
) -> jax.Array:
    """Log-probabilities f32[N, K] of tokens under a policy alone (a reference, say); arguments as `score_tokens`."""
    alone = dataclasses.replace(model, critic="none")
    return score_tokens({"policy": params}, alone, tokens, position, temperature).logprob


def values(params: dict[str, Any], model: ActorCritic, tokens: jax.Array, position: jax.Array) -> jax.Array:
    """Values f32[N, K] before the tokens at `position`; arguments as `score_tokens`."""
    return _value(params, model, tokens, position, None)


def _value(params, model: ActorCritic, tokens, position, hidden) -> jax.Array:
    """A shared critic reads the policy's `hidden` [N, K, D] if there is one, and makes its own otherwise."""
    if model.critic == "none":
        return jnp.zeros(position.shape, jnp.float32)
    critic = params["critic"]
    if model.critic == "separate" or hidden is None:
        backbone = critic.get("decoder", params["policy"])
        hidden = _before(decoder.forward(backbone, model.decoder, tokens, common=model.common), position)
    return hidden.astype(jnp.float32) @ critic["head"] + critic["bias"]


def _before(hidden: jax.Array, position: jax.Array) -> jax.Array:
    """States [N, K, D] from which the tokens at `position` are predicted."""
    return jnp.take_along_axis(hidden, position[..., None] - 1, axis=1)
