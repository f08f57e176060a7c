"""Chat with a model in the terminal; responses appear token by token."""

import codecs
import functools
import sys
from collections.abc import Iterator
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.errors import UserError, refusals
from agentrl_jax.models import actor_critic, cached_decoder, decoder
from agentrl_jax.models.decoder import Params
from agentrl_jax.models.io.load import load_pretrained
from agentrl_jax.models.kv_cache import init_cache
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.rollout.prefill import chunked_prefill
from agentrl_jax.rollout.sampling import sample
from agentrl_jax.runs.run_folder import is_run, read_config
from agentrl_jax.setup.policy import load_policy
from agentrl_jax.terminal import visible
from agentrl_jax.text.conversation import conversation_ids, following_ids
from agentrl_jax.text.tokenizer import Tokenizer, from_files, padded

CHUNK = 64
"""Maximum number of prompt tokens that are prefilled at once."""


class Conversation:
    """A conversation with a model; `ids` are all its tokens so far, those of responses as sampled.

    They are only appended, so that the KV cache is never recomputed.
    """

    def __init__(
        self,
        params: Params,
        shape: DecoderConfig,
        tokenizer: Tokenizer,
        *,
        length: int,
        temperature: float = 0.0,
        seed: int = 0,
        system: str = "",
        thinking: bool | None = None,
    ):
        """Starts a conversation of at most `length` tokens.

        The tokenizer needs a chat format. A `temperature` of 0 takes the most likely token. An empty `system` message
        leaves it to the chat template, and `thinking` is as `text.chat.chat_format` takes it.
        """
        self.ids: list[int] = []
        self._tokenizer, self._length, self._thinking = tokenizer, length, thinking
        self._opening = [("system", system)] if system else []
        self._temperature, self._key = jnp.full(1, temperature, jnp.float32), jax.random.key(seed)
        self._cached, self._ended = 0, True
        self._params = _prepare_for_decode(params, shape)
        self._cache = init_cache(shape, 1, length)
        self._shape = shape

    def respond(self, message: str, max_tokens: int) -> Iterator[int]:
        """Asks the model and yields its response token by token, without the token that ends it.

        Raises:
            UserError: the conversation has become too long, or the tokenizer has no chat format.
        """
        with refusals():
            if self.ids:
                prompt = following_ids(self._tokenizer, message, response_ended=self._ended, thinking=self._thinking)
            else:
                opening = [*self._opening, ("user", message)]
                prompt = conversation_ids(self._tokenizer, opening, thinking=self._thinking)
        if len(self.ids) + len(prompt) >= self._length:
            raise UserError(
                f"the conversation has {len(self.ids) + len(prompt)} tokens, more than the {self._length} that it may "
                "have (--length, and the positions of the model); start a new one",
                key="--length",
                value=self._length,
            )
        self.ids += prompt
        self._ended = False
        for _ in range(min(max_tokens, self._length - len(self.ids))):
            token = self._next()
            self.ids.append(token)
            if token in self._tokenizer.stop_ids:
                self._ended = True
                return
            yield token

    def _next(self) -> int:
        """Prefills the tokens that are not yet in the cache and samples the next one."""
        token = None
        while self._cached < len(self.ids):
            chunk = self.ids[self._cached : self._cached + CHUNK]
            tokens = np.zeros((1, 1 if len(chunk) == 1 else CHUNK), np.int32)
            tokens[0, : len(chunk)] = chunk
            start, count = jnp.array([self._cached], jnp.int32), jnp.array([len(chunk)], jnp.int32)
            key = jax.random.fold_in(self._key, len(self.ids))[None]
            token, self._cache = _step(
                self._shape, self._params, self._cache, tokens, start, count, key, self._temperature
            )
            self._cached += len(chunk)
        return int(np.asarray(token)[0])


_prepare_for_decode = jax.jit(cached_decoder.prepare_for_decode, static_argnums=1)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=2)
def _step(shape: DecoderConfig, params, cache, tokens, start, count, keys, temperature):
    last, cache = chunked_prefill(params, shape, cache, tokens, start, count, 0)
    token, _ = sample(keys, decoder.logits(params, last), temperature)
    return token, cache


class Speaker(NamedTuple):
    """What a conversation needs from a model: the first three arguments of `Conversation` and two settings."""

    params: Params
    shape: DecoderConfig
    tokenizer: Tokenizer
    positions: int | None
    """Maximum number of tokens in a conversation; None for no limit."""
    thinking: bool | None = None
    """Whether responses have a think block unless chosen otherwise; None leaves it to the template."""


def speaker(model: str, *, online: bool = False, revision: str | None = None) -> Speaker:
    """Loads a pretrained model, with arguments as `load_pretrained`, or the policy of a run from its folder.

    A run's configuration sets `online` and `revision` for the run's model.

    Raises:
        UserError: the model cannot be used, or the run's policy was never trained on chat.
    """
    with refusals():
        if is_run(model):
            return _of_run(model)
        pretrained = load_pretrained(model, online=online, revision=revision)
        decoder_shape = pretrained.config.decoder
        tokenizer = padded(from_files(pretrained.files, model), decoder_shape.vocab_size)
        return Speaker(pretrained.params, decoder_shape, tokenizer, pretrained.config.max_positions)


def _of_run(run: str) -> Speaker:
    config = read_config(run)
    policy = load_policy(run, config)
    if policy.tokenizer.template is None:
        raise UserError.at(
            run,
            "its tokenizer has no chat template, so that its policy knows no conversation but that of its "
            "environment; see trajectories.jsonl in its folder, or talk with a run that has model.pretrained",
        )
    positions = policy.pretrained.max_positions if policy.pretrained else None
    params = actor_critic.policy_decoder(policy.params, policy.model)
    return Speaker(params, policy.model.decoder, policy.tokenizer, positions, config.prompt.thinks)


def chat(
    model: str,
    *,
    system: str,
    temperature: float,
    max_tokens: int,
    length: int,
    seed: int,
    thinking: Literal["auto", "on", "off"],
    online: bool,
    revision: str | None,
) -> None:
    """Chats with a model until the input ends; arguments are those of `speaker` and `Conversation`.

    `length` is limited to the model's positions. `thinking` says whether responses have a think block; "auto" takes the
    setting of the run's training, or else the template's default.

    Raises:
        UserError: the model cannot be used, or the conversation has become too long.
    """
    found = speaker(model, online=online, revision=revision)
    template = found.tokenizer.template
    if thinking != "auto" and not (template and template.asks_for_thinking):
        raise UserError.at(
            model,
            f"its chat template does not know enable_thinking, so that --thinking {thinking} has no effect; leave "
            "--thinking out",
            thinking,
        )
    conversation = Conversation(
        found.params,
        found.shape,
        found.tokenizer,
        length=min(length, found.positions or length),
        temperature=temperature,
        seed=seed,
        system=system,
        thinking=found.thinking if thinking == "auto" else thinking == "on",
    )
    print("An empty line or Ctrl-D ends the conversation.", file=sys.stderr)
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline().rstrip("\n")
        if not line:
            return
        text = codecs.getincrementaldecoder("utf-8")("replace")
        for token in conversation.respond(line, max_tokens):
            print(visible(text.decode(found.tokenizer.decode_bytes([token]))), end="", flush=True)
        print(text.decode(b"", final=True), flush=True)
