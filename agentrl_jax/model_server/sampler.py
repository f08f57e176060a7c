"""Samples responses to prompts of different lengths in one compiled program per combination of padded sizes.

Shapes: `B` rows, `P` prompt tokens, `L` response tokens, `V` vocabulary.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key, UInt32

from agentrl_jax.model_server.truncation import truncate
from agentrl_jax.models import cached_decoder, decoder
from agentrl_jax.models.kv_cache import KVCache, init_cache
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.rollout import parsing
from agentrl_jax.rollout.prefill import chunked_prefill
from agentrl_jax.rollout.sampling import sample, score

GROWTH = 4
"""Ratio of two neighboring padded sizes. A larger one compiles fewer programs and pads more."""

SMALLEST_PROMPT, SMALLEST_RESPONSE = 64, 32
"""Smallest padded numbers of tokens."""

CHUNK = 256
"""Maximum number of prompt tokens that are prefilled at once."""


class SampleRequest(NamedTuple):
    """One response to sample. `seed` (64 bits) and `choice` determine the random numbers of all its tokens."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    """0 takes the most likely token."""
    seed: int
    choice: int = 0
    top_k: int = 0
    """Number of most likely tokens that are sampled from; 0 for all."""
    top_p: float = 1.0
    """Probability that the tokens that are sampled from reach; 1 for all. See `truncate`."""
    to_answer: bool = False
    """End the response where its answer block closes, as the sampler's `grammars` say."""


class Sampled(NamedTuple):
    """A sampled response."""

    tokens: list[int]
    """With the token that ended it, if it ended by itself."""
    logprobs: list[float]
    """Log-probability of each token under the model, before temperature, top_k and top_p."""
    ended: bool
    """Whether it ended by itself, not by `max_tokens`."""


def padded_sizes(smallest: int, largest: int) -> tuple[int, ...]:
    """The sizes to which arrays are padded: `smallest`, `GROWTH` times as much and so on, and last `largest`."""
    sizes = [smallest]
    while sizes[-1] < largest:
        sizes.append(sizes[-1] * GROWTH)
    return (*sizes[:-1], largest)


class Sampler:
    """Samples up to `max_rows` responses at once. Used by one thread at a time.

    A response depends on its request alone, except that programs of different sizes round differently: a token may
    differ where two are almost equally likely.
    """

    def __init__(
        self,
        params: decoder.Params,
        shape: DecoderConfig,
        stop_ids: tuple[int, ...],
        *,
        context: int,
        max_tokens: int,
        max_rows: int,
        grammars: parsing.Tables = (),
    ):
        """Prompts and their responses have at most `context` tokens together, responses at most `max_tokens`.

        `grammars` has the format of responses that end at their answer; none is needed without such requests.
        """
        self.context, self.max_tokens, self.max_rows = context, max_tokens, max_rows
        self._params = jax.jit(cached_decoder.prepare_for_decode, static_argnums=1)(params, shape)
        self._program: Any = jax.jit(functools.partial(generate, shape, stop_ids), static_argnames="size")
        self.grammars = grammars
        self._rows = padded_sizes(1, max_rows)
        self._prompts = padded_sizes(SMALLEST_PROMPT, context)
        self._responses = padded_sizes(SMALLEST_RESPONSE, max_tokens)

    def __call__(self, requests: Sequence[SampleRequest]) -> list[Sampled]:
        """Samples a response to each of at most `max_rows` requests, in one dispatch."""
        rows = _padded(len(requests), self._rows)
        width = _padded(max(len(request.prompt) for request in requests), self._prompts)
        size = _padded(max(request.max_tokens for request in requests), self._responses)
        tokens, length = np.zeros((rows, width), np.int32), np.ones(rows, np.int32)
        # Rows beyond the requests read one token and are not decoded.
        limit, temperature = np.zeros(rows, np.int32), np.zeros(rows, np.float32)
        seed, choice = np.zeros((rows, 2), np.uint32), np.zeros(rows, np.int32)
        top_k, top_p, to_answer = np.zeros(rows, np.int32), np.ones(rows, np.float32), np.zeros(rows, bool)
        for row, request in enumerate(requests):
            tokens[row, : len(request.prompt)], length[row] = request.prompt, len(request.prompt)
            limit[row], temperature[row], choice[row] = request.max_tokens, request.temperature, request.choice
            seed[row] = request.seed >> 32 & 0xFFFFFFFF, request.seed & 0xFFFFFFFF
            top_k[row], top_p[row], to_answer[row] = request.top_k, request.top_p, request.to_answer
        rules = Rules(*map(jnp.asarray, (seed, choice, temperature, top_k, top_p, limit, to_answer)))
        made = self._program(self._params, tokens, length, rules, self.grammars, size=size)
        found = jax.device_get(made)
        return [
            Sampled(found.tokens[row, :count].tolist(), found.logprobs[row, :count].tolist(), bool(found.ended[row]))
            for row, count in enumerate(found.count[: len(requests)].tolist())
        ]

    def programs(self) -> int:
        """Number of programs compiled so far."""
        return self._program._cache_size()


class Rules(NamedTuple):
    """`SampleRequest`s as arrays."""

    seed: UInt32[Array, "B 2"]
    """Upper and lower 32 bits."""
    choice: Int[Array, " B"]
    temperature: Float[Array, " B"]
    top_k: Int[Array, " B"]
    top_p: Float[Array, " B"]
    limit: Int[Array, " B"]
    """Maximum number of tokens; 0 for rows that are not decoded."""
    to_answer: Bool[Array, " B"]


class Generated(struct.PyTreeNode):
    """Responses as arrays."""

    tokens: Int[Array, "B L"]
    logprobs: Float[Array, "B L"]
    count: Int[Array, " B"]
    ended: Bool[Array, " B"]


class _State(struct.PyTreeNode):
    cache: KVCache
    token: Int[Array, " B"]
    """The next token of each response, already sampled."""
    logprob: Float[Array, " B"]
    active: Bool[Array, " B"]
    parser: Any
    """State of the response format; `()` without one."""
    made: Generated


def generate(
    shape: DecoderConfig,
    stop_ids: tuple[int, ...],
    params: Any,
    tokens: Int[Array, "B P"],
    length: Int[Array, " B"],
    rules: Rules,
    grammars: parsing.Tables = (),
    *,
    size: int,
) -> Generated:
    """Samples responses of at most `rules.limit` tokens, which is at most `size` = L, to prompts padded on the right.

    `params` are those of `cached_decoder.prepare_for_decode`; `grammars` has one format, or none. The loop ends with
    the longest response.
    """
    rows = tokens.shape[0]
    task = jnp.zeros(rows, jnp.int32)
    keys = jax.vmap(jax.random.fold_in)(jax.random.wrap_key_data(rules.seed), rules.choice)

    def next_token(hidden, number):
        logits = decoder.logits(params, hidden)
        likely = truncate(logits, rules.temperature, rules.top_k, rules.top_p)
        token, _ = sample(_token_keys(keys, number), likely, rules.temperature)
        return token, score(logits, jnp.ones(rows), token)

    def step(state: _State) -> _State:
        number = jnp.max(state.made.count)  # of every active row
        column = (jnp.arange(size) == number) & state.active[:, None]
        parser = parsing.advance(grammars, task, state.parser, state.token)
        ended = jnp.isin(state.token, jnp.array(stop_ids))
        if grammars:
            ended |= rules.to_answer & parsing.closed(grammars, task, parser)
        made = Generated(
            tokens=jnp.where(column, state.token[:, None], state.made.tokens),
            logprobs=jnp.where(column, state.logprob[:, None], state.made.logprobs),
            count=state.made.count + state.active,
            ended=state.made.ended | (state.active & ended),
        )
        written = jnp.full(rows, number)
        hidden, cache = cached_decoder.decode_with_cache(
            *(params, shape, state.cache, state.token, length + number, written, state.active), lockstep=True
        )
        token, logprob = next_token(hidden, number + 1)
        return _State(cache, token, logprob, state.active & ~made.ended & (made.count < rules.limit), parser, made)

    cache = init_cache(shape, rows, tokens.shape[1], response=size)
    hidden, cache = chunked_prefill(params, shape, cache, tokens, jnp.zeros_like(length), length, CHUNK)
    nothing = Generated(
        jnp.zeros((rows, size), jnp.int32), jnp.zeros((rows, size)), jnp.zeros(rows, jnp.int32), jnp.zeros(rows, bool)
    )
    token, logprob = next_token(hidden, jnp.int32(0))
    start = _State(cache, token, logprob, rules.limit > 0, parsing.start(grammars, task), nothing)
    return jax.lax.while_loop(lambda state: jnp.any(state.active), step, start).made


def _token_keys(keys: Key[Array, " B"], number: Int[Array, ""]) -> Key[Array, " B"]:
    return jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)


def _padded(number: int, sizes: tuple[int, ...]) -> int:
    return next(size for size in sizes if size >= number)
