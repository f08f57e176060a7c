"""Measures whether responses depend on the prompt, by scoring the texts of a rollout under each other's prompts.

`algos.mutual_information` is applied to two samples of a rollout: first turns, with one prompt per group, and turns at
any position, each with its own prompt: all tokens that the model saw before it. The texts are the whole responses and,
if the prompt asks for a thought, the thoughts in them.

Shapes: `E` episodes in groups of `M` episodes, `T` turns, `L` tokens of a response, `N` texts, `J` prompts of at most
`S` tokens, `n` texts that are scored under one prompt.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from agentrl_jax.algos import gigpo, kl, masked, mutual_information
from agentrl_jax.config import PromptConfig, RolloutConfig
from agentrl_jax.models import cached_decoder, decoder
from agentrl_jax.models.cross_scores import logprobs_after
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN, Context
from agentrl_jax.rollout.packing import layout, pack_trajectories
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.text.thought import ThoughtTable, compile_thought, thought
from agentrl_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class PromptInformationConfig:
    """Static settings of a measurement."""

    pairs: int
    """Largest number of texts, and of prompts, in each sample."""
    group_size: int
    context: Context
    """As in the rollout."""
    context_tokens: int
    """Largest number of tokens of a context, as in the rollout; 0 for as many as can occur."""
    thought: ThoughtTable | None
    """Finds the thought in a response; None if the prompt does not ask for one."""


class Sample(NamedTuple):
    """N texts and the J prompts that they are scored under, as indices of episodes and turns."""

    episode: Int[Array, " N"]
    turn: Int[Array, " N"]
    prompt_episode: Int[Array, " J"]
    prompt_turn: Int[Array, " J"]
    own: Int[Array, " N"]
    """Index of the prompt that each text answers."""


class Prompts(struct.PyTreeNode):
    """Prompts, padded on the right, each with the texts that are scored under it."""

    tokens: Int[Array, "J S"]
    length: Int[Array, " J"]
    scored: Int[Array, "J n"]
    """Indices of the texts."""


class Texts(struct.PyTreeNode):
    """Responses, padded on the right."""

    tokens: Int[Array, "N L"]
    length: Int[Array, " N"]
    temperature: Float[Array, " N"]


Scorer = Callable[[decoder.Params, Prompts, Texts], jax.Array]
"""`score` with the model fixed."""


def build_config(
    prompt: PromptConfig, rollout: RolloutConfig, context: Context, pairs: int, tokenizer: Tokenizer
) -> PromptInformationConfig:
    """The measurement settings of a run."""
    return PromptInformationConfig(
        pairs=pairs,
        group_size=rollout.group_size,
        context=context,
        context_tokens=rollout.context_tokens,
        thought=compile_thought(tokenizer, forced=prompt.forced_tag) if prompt.think else None,
    )


def measure(
    policy: decoder.Params,
    reference: decoder.Params | None,
    trajectory: Trajectory,
    temperature: Float[Array, " E"],
    key: Key[Array, ""],
    *,
    config: PromptInformationConfig,
    scorer: Scorer,
) -> dict[str, Float[Array, ""]]:
    """Metrics of a rollout under the policy that generated it. Pure; meant to be compiled as a whole.

    Scores use the sampling temperature: a text's score under its own prompt is the log-probability with which it was
    sampled. RAGEN-2 uses the model's distribution at temperature 1, where the two are the same.

    `policy` and `reference` are decoders; the reference is that of the policy at the start of learning, None leaves out
    the divergence from it. The episodes of a group are contiguous. `key` samples episodes and turns.

    Returns the metrics of `mutual_information.measure` for first turns (collapse/first_turn_response_...) and for turns
    at any position (collapse/trajectory_response_...). If the prompt asks for thoughts: the same for the thoughts in
    both samples (without response_), where the tokens of a response before its thought count as part of the prompt; and
    collapse/valid_thinking_rate, the share of all turns with a thought. With a reference: actor/kl, the mean of k3 over
    the tokens of the second sample, in nats per token.
    """
    valid = trajectory.turn_mask & ~trajectory.failed[:, None]
    masks = {"response_": trajectory.response_mask & valid[..., None]}
    metrics: dict[str, jax.Array] = {}
    if config.thought is not None:
        find = jax.vmap(jax.vmap(functools.partial(thought, config.thought)))
        masks[""] = masks["response_"] & find(trajectory.response.tokens, trajectory.response.length)
        has_thought = jnp.any(masks[""], axis=-1).astype(jnp.float32)
        metrics["collapse/valid_thinking_rate"] = masked.moments(has_thought, valid)[0]
    samples = {
        "first_turn": (first_turns(valid[:, 0], jax.random.fold_in(key, 0), config), SINGLE_TURN),
        "trajectory": (any_turns(valid, jax.random.fold_in(key, 1), config), config.context),
    }
    for name, (sample, context) in samples.items():
        prompts = prompts_of(trajectory, sample, context, config.context_tokens)
        texts = texts_of(trajectory, sample, temperature)
        logprob = scorer(policy, prompts, texts)
        for kind, tokens in masks.items():
            chosen = tokens[sample.episode, sample.turn]
            found = mutual_information.measure(
                jnp.sum(jnp.where(chosen, logprob, 0.0), axis=-1).T,
                jnp.sum(chosen, axis=-1, dtype=jnp.int32),
                sample.own,
                jnp.any(chosen, axis=-1),
                _identity(prompts),
            )
            metrics |= {f"collapse/{name}_{kind}{metric}": x for metric, x in found.items()}
    if reference is not None:
        # In the last sample every text has its own prompt; the reference scores each text under that prompt only.
        before = scorer(reference, prompts.replace(scored=sample.own[:, None]), texts)[:, 0]
        distance = kl.estimate(logprob[sample.own, sample.own], before, "k3")
        metrics["actor/kl"] = masked.moments(distance, masks["response_"][sample.episode, sample.turn])[0]
    return metrics


def score(policy: decoder.Params, prompts: Prompts, texts: Texts, *, model: DecoderConfig) -> Float[Array, "J n L"]:
    """Log-probability of each token of the texts under each prompt, one prompt at a time."""
    layers = cached_decoder.prepare_for_decode(policy, model)

    def under(prompt: Prompts) -> jax.Array:
        some = jax.tree.map(lambda x: x[prompt.scored], texts)
        return logprobs_after(layers, model, prompt.tokens, prompt.length, some.tokens, some.length, some.temperature)

    return jax.lax.map(under, prompts)


def pad_prompts(scorer: Scorer, count: int) -> Scorer:
    """Wraps a scorer that needs a multiple of `count` prompts into one that takes any number, by padding."""

    def padded(policy: decoder.Params, prompts: Prompts, texts: Texts) -> Float[Array, "J n L"]:
        number = prompts.length.shape[0]
        index = jnp.minimum(jnp.arange(-(-number // count) * count), number - 1)
        return scorer(policy, jax.tree.map(lambda x: x[index], prompts), texts)[:number]

    return padded


def first_turns(valid: Bool[Array, " E"], key: Key[Array, ""], config: PromptInformationConfig) -> Sample:
    """Samples first turns, from as many episodes of each group as `pairs` allows; from a subset of groups if too many.

    Episodes in `valid` are chosen before others.
    """
    by_group = valid.reshape(-1, config.group_size)
    count = min(config.pairs, by_group.shape[0])
    each = min(config.pairs // count, config.group_size)
    group = _shuffle(jax.random.fold_in(key, 0), jnp.any(by_group, axis=1))[:count]
    keys = jax.vmap(functools.partial(jax.random.fold_in, jax.random.fold_in(key, 1)))(group)
    member = jax.vmap(_shuffle)(keys, by_group[group])[:, :each]
    episode = (group[:, None] * config.group_size + member).reshape(-1)
    return Sample(
        episode=episode,
        turn=jnp.zeros_like(episode),
        prompt_episode=group * config.group_size + member[:, 0],  # a member that failed may have read nothing
        prompt_turn=jnp.zeros_like(group),
        own=jnp.repeat(jnp.arange(count), each),
    )


def any_turns(valid: Bool[Array, "E T"], key: Key[Array, ""], config: PromptInformationConfig) -> Sample:
    """Samples episodes without replacement and one turn of each; every text has its own prompt.

    Turns in `valid` (played, in episodes that count) are chosen before others.
    """
    episode = _shuffle(jax.random.fold_in(key, 0), valid[:, 0])[: config.pairs]
    uniforms = jax.random.uniform(jax.random.fold_in(key, 1), valid.shape)
    turn = jnp.argmax(jnp.where(valid, uniforms, -1.0), axis=1)[episode]
    return Sample(episode, turn, prompt_episode=episode, prompt_turn=turn, own=jnp.arange(episode.shape[0]))


def prompts_of(trajectory: Trajectory, sample: Sample, context: Context, limit: int = 0) -> Prompts:
    """The prompts of a sample: all tokens before the response, including those inserted last. All texts are scored.

    `context` and `limit` are as in `pack_trajectories`.
    """
    episode, turn = sample.prompt_episode, sample.prompt_turn
    chosen = jax.tree.map(lambda x: x[episode], trajectory)
    if context.fresh:  # the other turns need not be packed
        names = ("observation", "observation_length", "join", "response", "turn")
        number, of_turn = jnp.arange(len(turn)), {name: getattr(chosen, name) for name in names}
        chosen = chosen.replace(**jax.tree.map(lambda x: x[number, turn][:, None], of_turn))
        turn, context = jnp.zeros_like(turn), FULL
    rows, places = pack_trajectories(chosen, context, limit), layout(chosen, context)
    row, place = places.place(turn)
    length = rows.position[row, place * chosen.response.tokens.shape[-1]]
    read = rows.tokens if places.shape[0] == 1 else rows.tokens[row]
    tokens = jnp.where(jnp.arange(rows.tokens.shape[1]) < length[:, None], read, 0)
    number = jnp.arange(sample.episode.shape[0])
    return Prompts(tokens=tokens, length=length, scored=jnp.broadcast_to(number, (row.shape[0], number.shape[0])))


def texts_of(trajectory: Trajectory, sample: Sample, temperature: Float[Array, " E"]) -> Texts:
    """The responses of a sample."""
    tokens, length = (x[sample.episode, sample.turn] for x in (trajectory.response.tokens, trajectory.response.length))
    return Texts(tokens=tokens, length=length, temperature=temperature[sample.episode])


def _shuffle(key: Key[Array, ""], first: Bool[Array, " K"]) -> Int[Array, " K"]:
    """Indices in random order, those where `first` is true before the others."""
    order = jax.random.permutation(key, first.shape[0])
    return order[jnp.argsort(~first[order], stable=True)]


def _identity(prompts: Prompts) -> Int[Array, " J"]:
    """Ids that are equal for equal prompts."""
    code = gigpo.hash_tokens(prompts.tokens, jnp.arange(prompts.tokens.shape[1]) < prompts.length[:, None])
    return jnp.argmax(jnp.all(code[:, None] == code, axis=-1), axis=1)
