"""Where in a response its thought stands: the tokens between `<think>` and `</think>`, found on the device.

Tags may be cut anywhere by a tokenizer and share tokens with their neighbors, so they are looked for in bytes, by an
automaton that is composed along the tokens as that of a response's format is (`agentrl_jax.text.automaton`).

Shapes: `Q` states, `V` vocabulary, `C` classes of tokens that behave alike, `L` tokens of a response.
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
        aged: i32[Q] the same state when the next token begins.
        inside: bool[Q] the opening tag is complete and the closing one is not.
        fresh: bool[Q] the token just read holds the first byte of what has been seen of the closing tag.
        closed: bool[Q] the closing tag is complete.
        visible: bool[V] the token has a byte that is no space.
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
    """Bytes of the tag that is looked for, the opening one or the closing one, that the text ends with."""

    closing: bool
    matched: int
    fresh: bool = False
    """The first of them is of the token that is being read."""

    @property
    def closed(self) -> bool:
        return self.closing and self.matched == len(_CLOSING)

    def move(self, byte: int) -> "_State":
        if self.closed:
            return self
        tag = _CLOSING if self.closing else _OPENING
        # `<` stands in a tag only at its beginning, so that no shorter beginning survives a byte that does not fit.
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
    """Which tokens of a response are its thought.

    The thought is what stands between the first `<think>` (the forced one, if the table is of forced tags) and the
    first `</think>` after it. A token that shares a byte with a tag is no part of it; spaces inside are. A thought that
    is not closed is none, and neither is one of nothing but spaces and special tokens.

    Args:
        table: from `compile_thought`.
        tokens: i32[L] of the response.
        length: i32[] how many of them count.

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
