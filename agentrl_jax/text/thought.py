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

from agentrl_jax.text import automaton
from agentrl_jax.text.grammar import INVISIBLE
from agentrl_jax.text.tokenizer import Tokenizer

_OPENING, _CLOSING = b"<think>", b"</think>"


class ThoughtTable(struct.PyTreeNode):
    """The automaton compiled for one tokenizer.

    Attributes:
        token_class: i32[V] class of each token; class 0 changes nothing.
        next_state: i32[Q, C] state after a token.
        aged: i32[Q] the same state at the start of the next token (not `fresh`).
        inside: bool[Q] the opening tag is complete and the closing one is not.
        fresh: bool[Q] the last token has the first byte of the matched part of the closing tag.
        closed: bool[Q] the closing tag is complete.
        visible: bool[V] the token has a byte that is not a space.
        start_state: state before the first token of a response.
    """

    token_class: jax.Array
    next_state: jax.Array
    aged: jax.Array
    inside: jax.Array
    fresh: jax.Array
    closed: jax.Array
    visible: jax.Array
    start_state: int = struct.field(pytree_node=False)


class _State(NamedTuple):
    """How many bytes of the next tag (opening or `closing`) have been matched at the end of the text."""

    closing: bool
    matched: int
    fresh: bool = False
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
            matched, fresh = self.matched + 1, self.fresh or self.matched == 0
        else:
            matched, fresh = int(byte == tag[0]), byte == tag[0]
        if not self.closing:
            return _State(True, 0) if matched == len(tag) else _State(False, matched)
        return _State(True, matched, fresh)

    def aged(self) -> "_State":
        return self._replace(fresh=False)


def compile_thought(tokenizer: Tokenizer, *, forced: bool) -> ThoughtTable:
    """Compiles the automaton for a tokenizer, on the host.

    Args:
        tokenizer: the tokenizer.
        forced: the opening tag is inserted for the agent, so that its response starts inside the thought.
    """
    opening = [_State(False, k) for k in range(len(_OPENING))]
    closing = [_State(True, k, fresh) for k, fresh in itertools.product(range(len(_CLOSING) + 1), (False, True))]
    states = [*opening, *closing]
    number = {state: i for i, state in enumerate(states)}
    moves = np.array([[number[state.move(byte)] for byte in range(256)] for state in states], np.int32)
    start = number[_State(forced, 0)]
    machine = automaton.ByteMachine(moves, np.zeros_like(moves), start, number[_State(True, len(_CLOSING))])
    token_class, next_state, _, _ = automaton.compose(machine, tokenizer.token_bytes)
    return ThoughtTable(
        token_class=jnp.asarray(token_class),
        next_state=jnp.asarray(next_state),
        aged=jnp.array([number[state.aged()] for state in states], jnp.int32),
        inside=jnp.array([state.closing and not state.closed for state in states]),
        fresh=jnp.array([state.fresh for state in states]),
        closed=jnp.array([state.closed for state in states]),
        visible=jnp.array([bool(data and data.strip(automaton.SPACE)) for data in tokenizer.token_bytes]),
        start_state=start,
    )


def thought(table: ThoughtTable, tokens: jax.Array, length: jax.Array) -> jax.Array:
    """Mask of the tokens of a response that form its thought.

    The thought is the text between the first `<think>` (the forced one, if the table is for forced tags) and the first
    `</think>` after it. Tokens that share a byte with a tag are excluded; spaces inside are included. A thought without
    a closing tag does not count, nor does one with only spaces and special tokens.

    Args:
        table: from `compile_thought`.
        tokens: i32[L] tokens of the response.
        length: i32[] number of tokens in the response.

    Returns:
        bool[L]
    """

    def step(carry, slot):
        state, begun = carry
        token, index = slot
        kind = table.token_class.at[token].get(mode="fill", fill_value=INVISIBLE, wrap_negative_indices=False)
        after = table.next_state[state, kind]
        after = jnp.where(index < length, after, state)
        begun = jnp.where(table.fresh[after], index, begun)
        return (table.aged[after], begun), table.inside[state]

    index = jnp.arange(tokens.shape[0])
    (last, begun), inside = jax.lax.scan(step, (jnp.int32(table.start_state), jnp.int32(0)), (tokens, index))
    between = inside & (index < jnp.minimum(begun, length)) & table.closed[last]
    visible = table.visible.at[tokens].get(mode="fill", fill_value=False, wrap_negative_indices=False)
    return between & jnp.any(between & visible)
