"""This project's side of `torch_model.py`: seconds of one repetition of one measurement."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from worker import seconds

from agentrl_jax.models import actor_critic, cached_decoder, decoder
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.models.io.load import Pretrained
from agentrl_jax.models.kv_cache import init_cache
from agentrl_jax.models.shape import DecoderConfig

PROMPT, CACHE, LENGTH = 128, 256, 512
"""Tokens of a prompt, positions of its cache, tokens of a row when a gradient is computed."""


class Ours:
    """The measurements of this project's decoder."""

    def __init__(self, pretrained: Pretrained):
        self.params = pretrained.params
        self.shape = pretrained.config.decoder
        self.by_layer: dict[str, Any] = {}

    def config(self, dtype: str, cache: str = "") -> DecoderConfig:
        """Returns the decoder configuration for dtypes of activations and cache."""
        return dataclasses.replace(self.shape, dtype=dtype, cache_dtype=cache)

    def layers(self, dtype: str) -> Any:
        """Returns the parameters in the form that `cached_decoder.forward_with_cache` takes; made once."""
        if dtype not in self.by_layer:
            prepare_for_decode = jax.jit(cached_decoder.prepare_for_decode, static_argnums=1)
            self.by_layer[dtype] = jax.block_until_ready(prepare_for_decode(self.params, self.config(dtype)))
        return self.by_layer[dtype]

    @functools.cached_property
    def prefill_program(self):
        """(params, config, tokens) -> logits of the last token, and the cache."""

        @functools.partial(jax.jit, static_argnums=1)
        def run(params, config, tokens):
            batch, length = tokens.shape
            cache = init_cache(config, batch, PROMPT, response=CACHE - PROMPT)
            zeros = jnp.zeros(batch, jnp.int32)
            last, cache = cached_decoder.forward_with_cache(
                params, config, cache, tokens, zeros, zeros + length, only_last=True
            )
            return decoder.logits(params, last[:, 0]), cache

        return run

    @functools.cached_property
    def decode_program(self):
        """(params, config, cache, token, steps) -> the last of `steps` greedy tokens, and the cache."""

        @functools.partial(jax.jit, static_argnums=(1, 4), donate_argnums=2)
        def run(params, config, cache, token, steps):
            batch = token.shape[0]

            def step(i, carry):
                token, cache = carry
                length = jnp.full(batch, i, jnp.int32)
                hidden, cache = cached_decoder.decode_with_cache(
                    params, config, cache, token, PROMPT + length, length, jnp.ones(batch, bool)
                )
                return jnp.argmax(decoder.logits(params, hidden), axis=-1).astype(jnp.int32), cache

            return jax.lax.fori_loop(0, steps, step, (token, cache))

        return run

    @functools.cached_property
    def gradient_program(self):
        """(params, model, tokens, parts) -> gradient of the mean token loss."""

        @functools.partial(jax.jit, static_argnums=(1, 3))
        def run(params, model, tokens, parts):
            position = jnp.broadcast_to(jnp.arange(1, LENGTH), (len(tokens) // parts, LENGTH - 1))

            def loss(params, rows):
                scores = actor_critic.score_tokens({"policy": params}, model, rows, position, jnp.ones(rows.shape[0]))
                return -jnp.sum(scores.logprob) / (len(tokens) * (LENGTH - 1))

            def add(total, rows):
                return jax.tree.map(jnp.add, total, jax.grad(loss)(params, rows)), None

            if parts == 1:
                return jax.grad(loss)(params, tokens)
            split = tokens.reshape(parts, -1, LENGTH)
            return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), split)[0]

        return run

    def prefill(self, batch: int, dtype: str) -> float:
        """Seconds of one prefill."""
        tokens = random_tokens(batch, PROMPT)
        run = functools.partial(self.prefill_program, self.layers(dtype), self.config(dtype), tokens)
        return seconds(lambda: jax.block_until_ready(run()))

    def decode(self, batch: int, steps: int, cache: str, dtype: str) -> float:
        """Seconds of `steps` greedy tokens; `cache` is the dtype of the cache, by default that of the activations."""
        params, config = self.layers(dtype), self.config(dtype, cache)
        logits, cache = self.prefill_program(params, config, random_tokens(batch, PROMPT))
        token = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        jax.block_until_ready((token, cache))
        return seconds(lambda: jax.block_until_ready(self.decode_program(params, config, cache, token, steps)))

    def gradient(self, rows: int, remat: str, parts: int, dtype: str) -> float:
        """Seconds of one gradient computation."""
        model = ActorCritic(decoder=self.config(dtype), critic="none", remat=remat)
        tokens = random_tokens(rows, LENGTH)
        return seconds(lambda: jax.block_until_ready(self.gradient_program(self.params, model, tokens, parts)))


def random_tokens(batch: int, length: int) -> jax.Array:
    return jax.block_until_ready(jax.random.randint(jax.random.key(batch), (batch, length), 0, 1000))
