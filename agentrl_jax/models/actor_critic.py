"""A policy and its critic as one tree of parameters.

Shapes: `N` rows of `S` tokens, of which `K` are scored, `D` embedding dimension, `V` vocabulary. Outputs [N, K] refer
to the token at `position` and are computed from the tokens before it. Logits are computed for these K tokens only.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from agentrl_jax.errors import BadValue
from agentrl_jax.models import decoder, lora
from agentrl_jax.models.decoder import NO_GATHER, NoGather, Remat
from agentrl_jax.models.lora import LoraConfig
from agentrl_jax.models.manual_axes import as_varying, varying
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.models.token_scores import Measure, compare, logprob_and_entropy
from agentrl_jax.models.vocabulary import Vocabulary

Tokens = Int[Array, "N S"]
Positions = Int[Array, "N K"]
Scores = Float[Array, "N K"]
Temperature = Float[Array, " N"] | Float[Array, "N K"]
"""Of each row, or of each token."""
Segments = Int[Array, "N S"] | None
"""Ids of the sequences in rows that are packed with several, see `decoder.forward`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ActorCritic:
    """Shapes of a policy and its critic, and which part of them is trained; other fields as for `decoder.forward`.

    Attributes:
        decoder: shape of the policy, and of a separate critic.
        critic: "none"; "shared": a linear head on the policy's last hidden state; "separate": a second decoder.
        lora: if given, the policy and a separate critic are adapters of one frozen decoder.
        frozen_layers: number of first layers that are frozen together with the embedding, or, with LoRA, that have no
            adapter; 0 trains everything. No gradient is computed through these layers.
        sequence_axis: mesh axis of a `jax.shard_map` whose devices share the positions of the same rows, and the tokens
            to score; empty: none. Gradients are then those of a device's share, to be summed over the axis.
    """

    decoder: DecoderConfig
    critic: Literal["none", "shared", "separate"]
    shared_prefix_len: int = 0
    lora: LoraConfig | None = None
    frozen_layers: int = 0
    remat: Remat = "none"
    gather: NoGather = NO_GATHER
    sequence_axis: str = ""

    def __post_init__(self):
        if not 0 <= self.frozen_layers < self.decoder.num_layers:
            raise BadValue(
                f"{self.frozen_layers} frozen layers of {self.decoder.num_layers}; leave one to train",
                key="frozen layers",
                value=self.frozen_layers,
            )


class TokenScores(struct.PyTreeNode):
    """Scores of K tokens of N rows, see `score_tokens`."""

    logprob: Scores
    entropy: Scores
    """Of the distribution that the token was sampled from."""
    value: Scores
    """The critic's value before the token; 0 without a critic."""
    distance: Scores | None = None
    """To the policy that was `compared`."""
    teacher_logprob: Scores | None = None
    """Of the token under the teacher, without a gradient."""
    teacher_distance: Scores | None = None


class Teacher(NamedTuple):
    """A policy that scores the same tokens as another one, after another prompt. No gradient reaches it."""

    policy: Any
    """Its trained part; None: the parameters of the policy that it teaches."""
    tokens: Tokens | None
    """Its rows, i32[N, S']; None: those of the policy that it teaches."""
    position: Positions | None
    """Where they have the tokens that are scored, i32[N, K]."""
    shared_prefix_len: int
    """Leading tokens that its rows have in common."""
    measure: Measure | None
    """Distance of the policy's distribution from the teacher's, see `token_scores.compare`; None: not measured."""


def init_params(key: Key[Array, ""], model: ActorCritic) -> dict[str, Any]:
    """Random initial parameters, see `from_decoder`."""
    return from_decoder(key, decoder.init_params(key, model.decoder), model)


def from_decoder(key: Key[Array, ""], pretrained: decoder.Params, model: ActorCritic) -> dict[str, Any]:
    """Parameters of policy and critic, initialized from a decoder.

    "policy": the decoder, its trained part, or its adapter. "critic", if there is one: "head" f32[D], "bias" f32[] and,
    for a separate critic, "decoder", which starts as a copy of "policy". "frozen", if anything is frozen: the rest of
    the decoder, or all of it.
    """
    params: dict[str, Any] = {}
    if model.frozen_layers:
        first = {name: x[: model.frozen_layers] for name, x in pretrained["layers"].items()}
        rest = {name: x[model.frozen_layers :] for name, x in pretrained["layers"].items()}
        pretrained = {**pretrained, "first_layers": first, "layers": rest}
    if model.lora:
        adapted = model.decoder.num_layers - model.frozen_layers
        params |= {"policy": lora.init_adapter(key, model.decoder, model.lora, adapted), "frozen": pretrained}
    elif model.frozen_layers:
        frozen = {name: pretrained[name] for name in ("embedding", "first_layers")}
        trained = {name: x for name, x in pretrained.items() if name not in frozen}
        params |= {"policy": jax.tree.map(lambda x: x.astype(jnp.float32), trained), "frozen": frozen}
    else:
        params["policy"] = pretrained
    if model.critic != "none":
        params["critic"] = {"head": jnp.zeros(model.decoder.embed_dim, jnp.float32), "bias": jnp.zeros((), jnp.float32)}
    if model.critic == "separate":
        params["critic"]["decoder"] = params["policy"]
    return critic_from_policy(params)


def critic_from_policy(params: dict[str, Any]) -> dict[str, Any]:
    """Sets a separate critic's decoder to a copy of the policy's, as RAGEN does; other parameters are unchanged."""
    if "decoder" not in params.get("critic", {}):
        return params
    return {**params, "critic": {**params["critic"], "decoder": jax.tree.map(jnp.copy, params["policy"])}}


def policy_decoder(params: dict[str, Any], model: ActorCritic) -> decoder.Params:
    """The full decoder of the policy, for `decoder.forward` and `cached_decoder`; nothing is copied."""
    return _full_decoder(params["policy"], params, model)


def plain_decoder(params: dict[str, Any], model: ActorCritic) -> decoder.Params:
    """The decoder of the policy in the form of `decoder.init_params`, f32: adapter merged, layers in one stack."""
    params = {name: jax.tree.map(lambda x: x.astype(jnp.float32), params[name]) for name in params if name != "critic"}
    policy = lora.merge(params["frozen"], params["policy"], model.lora) if model.lora else policy_decoder(params, model)
    outer, stacks = decoder.split_stacks(policy)
    return {**outer, "layers": jax.tree.map(lambda *parts: jnp.concatenate(parts), *stacks)}


def score_tokens(
    params: dict[str, Any],
    model: ActorCritic,
    tokens: Tokens,
    position: Positions,
    temperature: Temperature,
    compared: tuple[Any, Measure] | None = None,
    mask: Bool[Array, "N K"] | None = None,
    segment_ids: Segments = None,
    teacher: Teacher | None = None,
) -> TokenScores:
    """Scores the tokens at `position` (at least 1) of rows that are padded on the right, in one parallel forward pass.

    Greedy rows (temperature 0) are scored at temperature 1. `compared` is the trained part of another policy, which
    gets no gradient, and a measure of the distance between the two distributions, see `token_scores.compare`. Scores
    outside of `mask` are not needed: those that read the vocabulary may be 0. With a `teacher`, there are scores of
    its, too.
    """

    needed = jnp.ones(position.shape, bool) if mask is None else mask
    temperature = jnp.broadcast_to(temperature.reshape(len(tokens), -1), position.shape)

    def score(position, temperature, *taught_and_needed):
        *taught, needed = taught_and_needed
        of_some = None if mask is None else needed
        own = teacher and teacher._replace(position=taught[0] if taught else position)
        return _score_tokens(params, model, tokens, position, temperature, compared, of_some, segment_ids, own)

    taught = () if teacher is None or teacher.position is None else (teacher.position,)
    return _share_positions(score, model, position, temperature, *taught, needed)


def _share_positions(score: Callable[..., Any], model: ActorCritic, *arrays: jax.Array) -> Any:
    """Scores [N, K] of all positions, of which each device of `model.sequence_axis` computes a share.

    `score` takes the arrays [N, K], of which the last is a mask.
    """
    axis = model.sequence_axis
    if not axis:
        return score(*arrays)
    *arrays, mask = arrays  # type: ignore[assignment]
    devices, number = jax.lax.axis_size(axis), mask.shape[1]
    share = -(-number // devices)
    start = jax.lax.axis_index(axis) * share
    missing = ((0, 0), (0, devices * share - number))
    padded = (*(jnp.pad(x, missing, "edge") for x in arrays), jnp.pad(mask, missing))
    scores = score(*(jax.lax.dynamic_slice_in_dim(x, start, share, axis=1) for x in padded))

    def gather(x):
        # A sum of disjoint shares instead of an all-gather, because its result counts as replicated.
        whole = jnp.zeros((len(x), devices * share), x.dtype)
        return jax.lax.psum(jax.lax.dynamic_update_slice_in_dim(whole, x, start, axis=1), axis)[:, :number]

    return jax.tree.map(gather, scores)


def _score_tokens(
    params: dict[str, Any],
    model: ActorCritic,
    tokens: Tokens,
    position: Positions,
    temperature: Scores,
    compared: tuple[Any, Measure] | None,
    mask: Bool[Array, "N K"] | None,
    segment_ids: Segments,
    teacher: Teacher | None,
) -> TokenScores:
    tokens = as_varying(tokens, varying(position))  # so that they can be ordered after scores
    head, vocabulary, hidden = _hidden_and_head(policy_decoder(params, model), model, tokens, position, segment_ids)
    token = jnp.take_along_axis(tokens, position, axis=1)
    temperature = jnp.where(temperature > 0, temperature, 1.0)
    logprob, entropy = logprob_and_entropy(head, vocabulary, hidden, token, temperature, mask)
    distance = None
    if compared is not None:
        logprob, (other, tokens) = model.gather.ordered(logprob, (compared[0], tokens))
        other = _full_decoder(jax.lax.stop_gradient(other), params, model)
        ref_head, _, ref_hidden = _hidden_and_head(other, model, tokens, position, segment_ids)
        ref_hidden = jax.lax.stop_gradient(ref_hidden)
        distance = compare(head, vocabulary, hidden, ref_head, ref_hidden, temperature, compared[1], mask)
    taught = teacher_distance = None
    if teacher is not None:
        if teacher.policy is None and teacher.tokens is None:
            ref_head, ref_hidden, taught = jax.lax.stop_gradient((head, hidden, logprob))
        else:
            (logprob, distance), own = model.gather.ordered((logprob, distance), _read_by(teacher, params, tokens))
            policy, rows = own
            ref_head, ref_hidden, taught = _taught(policy, rows, teacher, params, model, token, temperature, mask)
        if teacher.measure is not None:
            reference = ref_head, ref_hidden, temperature, teacher.measure, mask
            teacher_distance = compare(head, vocabulary, hidden, *reference)
    if model.critic != "none":
        scores = logprob, distance, taught, teacher_distance
        scores, (critic, tokens) = model.gather.ordered(scores, (params["critic"], tokens))
        (logprob, distance, taught, teacher_distance), params = scores, {**params, "critic": critic}
    value = _value(params, model, tokens, position, hidden, segment_ids)
    return TokenScores(logprob, entropy, value, distance, taught, teacher_distance)


def _read_by(teacher: Teacher, params: dict[str, Any], tokens: Tokens) -> tuple[Any, Int[Array, "N R"]]:
    """The trained part of the teacher, and its rows."""
    policy = params["policy"] if teacher.policy is None else teacher.policy
    return jax.lax.stop_gradient(policy), tokens if teacher.tokens is None else teacher.tokens


def _taught(
    policy: Any,
    rows: Tokens,
    teacher: Teacher,
    params: dict[str, Any],
    model: ActorCritic,
    token: Int[Array, "N K"],
    temperature: Scores,
    mask: Bool[Array, "N K"] | None,
) -> tuple[decoder.Params, Float[Array, "N K D"], Scores]:
    """What `decoder.logits` reads of the teacher, its hidden states, and its log-probabilities of the tokens."""
    assert teacher.position is not None
    model = dataclasses.replace(model, shared_prefix_len=teacher.shared_prefix_len)
    rows = as_varying(rows, varying(teacher.position))
    full = _full_decoder(policy, params, model)
    head, vocabulary, hidden = _hidden_and_head(full, model, rows, teacher.position, None)
    logprob, _ = logprob_and_entropy(head, vocabulary, hidden, token, temperature, mask)
    return jax.lax.stop_gradient((head, hidden, logprob))


def logprobs(
    params: dict[str, Any],
    model: ActorCritic,
    tokens: Tokens,
    position: Positions,
    temperature: Temperature,
    mask: Bool[Array, "N K"] | None = None,
    segment_ids: Segments = None,
) -> Scores:
    """Log-probabilities of tokens under a policy, without a critic; arguments as in `score_tokens`."""
    model = dataclasses.replace(model, critic="none")
    return score_tokens(params, model, tokens, position, temperature, mask=mask, segment_ids=segment_ids).logprob


def entropies(
    params: dict[str, Any],
    model: ActorCritic,
    tokens: Tokens,
    position: Positions,
    temperature: Temperature,
    mask: Bool[Array, "N K"] | None = None,
    segment_ids: Segments = None,
) -> Scores:
    """Entropies in nats of a policy before the tokens at `position`; arguments as in `logprobs`."""
    model = dataclasses.replace(model, critic="none")
    return score_tokens(params, model, tokens, position, temperature, mask=mask, segment_ids=segment_ids).entropy


def values(
    params: dict[str, Any], model: ActorCritic, tokens: Tokens, position: Positions, segment_ids: Segments = None
) -> Scores:
    """The critic's values before the tokens at `position`; arguments as in `score_tokens`."""

    def value(position, _):
        return _value(params, model, tokens, position, None, segment_ids)

    return _share_positions(value, model, position, jnp.ones(position.shape, bool))


def _value(
    params,
    model: ActorCritic,
    tokens: Tokens,
    position: Positions,
    hidden: Float[Array, "N K D"] | None,
    segment_ids: Segments,
) -> Scores:
    """Critic's values; a shared critic reads the policy's `hidden`, which is computed here if None."""
    if model.critic == "none":
        return jnp.zeros(position.shape, jnp.float32)
    critic = params["critic"]
    if model.critic == "separate" or hidden is None:
        backbone = _full_decoder(critic.get("decoder", params["policy"]), params, model)
        hidden = _hidden(backbone, model, tokens, position, segment_ids)
    hidden, head = model.gather.after(hidden, {"head": critic["head"]})
    return hidden.astype(jnp.float32) @ head["head"] + critic["bias"]


def _full_decoder(trained: Any, params: dict[str, Any], model: ActorCritic) -> decoder.Params:
    if model.lora:
        return lora.attach(params["frozen"], trained, model.lora)
    return {**params["frozen"], **trained} if model.frozen_layers else trained


def _hidden_and_head(
    policy: decoder.Params, model: ActorCritic, tokens: Tokens, position: Positions, segment_ids: Segments
) -> tuple[decoder.Params, Vocabulary, Float[Array, "N K D"]]:
    """What `decoder.logits` reads of the policy, which logits that gives, and the hidden states of `_hidden`."""
    hidden = _hidden(policy, model, tokens, position, segment_ids)
    matrix = "lm_head" if "lm_head" in policy else "embedding"
    hidden, head = model.gather.ordered(hidden, {matrix: policy[matrix]})
    return *model.gather.head(head, model.decoder.vocab_size), hidden


def _hidden(
    policy: decoder.Params, model: ActorCritic, tokens: Tokens, position: Positions, segment_ids: Segments
) -> Float[Array, "N K D"]:
    """Hidden states from which the tokens at `position` are predicted."""
    hidden = decoder.forward(
        policy,
        model.decoder,
        tokens,
        shared_prefix_len=model.shared_prefix_len if segment_ids is None else 0,
        segment_ids=segment_ids,
        sequence_axis=model.sequence_axis,
        remat=model.remat,
        gather=model.gather,
    )
    return jnp.take_along_axis(hidden, position[..., None] - 1, axis=1)
