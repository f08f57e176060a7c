"""Finds the thought of a response on the device: the tokens between `<think>` and `</think>`.

Tokenizers may split tags anywhere, and tags may share tokens with other text. So tags are found in bytes, by an
automaton that is composed over tokens like that of the response format (`agentrl_jax.text.automaton`).

Shapes: `Q` states, `V` vocabulary, `C` classes of tokens with the same effect, `L` tokens of a response.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int

from agentrl_jax.text import automaton
from agentrl_jax.text.grammar import INVISIBLE
from agentrl_jax.text.tokenizer import Tokenizer

_OPENING, _CLOSING = b"<think>", b"</think>"


class ThoughtTable(struct.PyTreeNode):
    """The automaton compiled for one tokenizer; class 0 of the tokens changes nothing."""

    token_class: Int[Array, " V"]
    next_state: Int[Array, "Q C"]
    at_next_token: Int[Array, " Q"]
    """The same state at the start of the next token (not `tag_began`)."""
    inside: Bool[Array, " Q"]
    """The opening tag is complete and the closing one is not."""
    tag_began: Bool[Array, " Q"]
    """The last token has the first byte of the matched part of the closing tag."""
    closed: Bool[Array, " Q"]
    visible: Bool[Array, " V"]
    """The token has a byte that is not a space."""
    start_state: int = struct.field(pytree_node=False)


class _State(NamedTuple):
    """How many bytes of the next tag (opening or `closing`) have been matched at the end of the text."""

    closing: bool
    matched: int
    tag_began: bool = False
    """The first matched byte belongs to the current token."""

    @property
    def closed(self) -> bool:
        return self.closing and self.matched == len(_CLOSING)

    def move(self, byte: int) -> "_State":
        if self.closed:
            return self
        tag = _CLOSING if self.closing else _OPENING
        # A tag has `<` only as its first byte, so after a mismatch at most this byte can still match.
        if byte == tag[self.matched]:
            matched, tag_began = self.matched + 1, self.tag_began or self.matched == 0
        else:
            matched, tag_began = int(byte == tag[0]), byte == tag[0]
        if not self.closing:
            return _State(True, 0) if matched == len(tag) else _State(False, matched)
        return _State(True, matched, tag_began)


def compile_thought(tokenizer: Tokenizer, *, forced: bool) -> ThoughtTable:
    """Compiles the automaton for a tokenizer, on the host.

    With `forced`, the opening tag is inserted for the agent, so that its response starts inside the thought.
    """
    states = [_State(False, k) for k in range(len(_OPENING))]
    states += [_State(True, k, began) for k, began in itertools.product(range(len(_CLOSING) + 1), (False, True))]
    ids = {state: i for i, state in enumerate(states)}
    moves = np.array([[ids[state.move(byte)] for byte in range(256)] for state in states], np.int32)
    start = ids[_State(forced, 0)]
    nothing = np.zeros_like(moves)
    machine = automaton.ByteMachine(moves, nothing, nothing, start, ids[_State(True, len(_CLOSING))])
    token_class, next_state, *_ = automaton.compose(machine, tokenizer.token_bytes)
    return ThoughtTable(
        token_class=jnp.asarray(token_class),
        next_state=jnp.asarray(next_state),
        at_next_token=jnp.array([ids[state._replace(tag_began=False)] for state in states], jnp.int32),
        inside=jnp.array([state.closing and not state.closed for state in states]),
        tag_began=jnp.array([state.tag_began for state in states]),
        closed=jnp.array([state.closed for state in states]),
        visible=jnp.array([bool(data and data.strip(automaton.SPACE)) for data in tokenizer.token_bytes]),
        start_state=start,
    )


def thought(table: ThoughtTable, tokens: Int[Array, " L"], length: Int[Array, ""]) -> Bool[Array, " L"]:
    """Returns which of the first `length` tokens of a response form its thought.

    The thought is the text between the first `<think>` (the forced one, if the table is for forced tags) and the first
    `</think>` after it. Tokens that share a byte with a tag are excluded; spaces inside are included. A thought without
    a closing tag does not count, nor does one with only spaces and special tokens.
    """

    def step(carry, inputs):
        state, tag_start = carry
        token, index = inputs
        kind = table.token_class.at[token].get(mode="fill", fill_value=INVISIBLE, wrap_negative_indices=False)
        after = table.next_state[state, kind]
        after = jnp.where(index < length, after, state)
        tag_start = jnp.where(table.tag_began[after], index, tag_start)
        return (table.at_next_token[after], tag_start), table.inside[state]

    index = jnp.arange(tokens.shape[0])
    (last, tag_start), inside = jax.lax.scan(step, (jnp.int32(table.start_state), jnp.int32(0)), (tokens, index))
    between = inside & (index < jnp.minimum(tag_start, length)) & table.closed[last]
    visible = table.visible.at[tokens].get(mode="fill", fill_value=False, wrap_negative_indices=False)
    return between & jnp.any(between & visible)
