"""Finds the argument of a command in a response on the device, exact in bytes.

A tag may begin and end inside a token, so an argument is a range of the response's bytes. An automaton that counts
bytes (`command_automaton`) finds it in the tokens, and a table of the vocabulary's bytes writes it out.

Shapes: `V` vocabulary, `M` bytes of the vocabulary, `L` tokens of a response, `N` bytes of an argument.
"""

import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int, UInt8

from agentrl_jax.text import command_automaton, grammar
from agentrl_jax.text.grammar import CommandGrammar, GrammarTable
from agentrl_jax.text.tokenizer import Tokenizer


class ArgumentTable(struct.PyTreeNode):
    """A `CommandGrammar` compiled for one tokenizer."""

    counter: GrammarTable
    """Its first item is the number of bytes before the last one of the opening, its second one that of the bytes
    between the opening and the last byte of the closing text."""
    closing: Int[Array, " commands"]
    """Bytes of the closing texts."""
    bytes: UInt8[Array, " M"]
    """Those of token `i` are `bytes[offsets[i]:offsets[i + 1]]`; special tokens have none."""
    offsets: Int[Array, " V+1"]


class Argument(NamedTuple):
    """The argument of one response."""

    text: UInt8[Array, " N"]
    """Its first bytes, then 0."""
    length: Int[Array, ""]
    """Its bytes, also those beyond N; 0 where the response has no command."""
    first: Int[Array, ""]
    """Bytes of the response before it."""
    ignored: Int[Array, ""]
    """Bytes of the response after the closing text, such as the rest of a token that crosses its end."""


def compile_arguments(form: CommandGrammar, tokenizer: Tokenizer) -> ArgumentTable:
    """Compiles the table for a tokenizer, on the host."""
    counter = command_automaton.build(form, counts=True)
    encoded = [data or b"" for data in tokenizer.token_bytes]
    return ArgumentTable(
        counter=grammar.compile_machine(counter, tokenizer, 2),
        closing=jnp.array([len(closing.encode()) for _, closing in form.templates], jnp.int32),
        bytes=jnp.asarray(np.frombuffer(b"".join(encoded), np.uint8)),
        offsets=jnp.array([0, *itertools.accumulate(map(len, encoded))], jnp.int32),
    )


def find_argument(
    table: ArgumentTable, command: Int[Array, ""], tokens: Int[Array, " L"], length: Int[Array, ""], size: int
) -> Argument:
    """Finds the argument in the first `length` tokens of a response whose command has the id `command`.

    A negative id is a response without a command. `size` is the static N.
    """
    index = jnp.arange(tokens.shape[0])
    # Ids outside of the vocabulary have no bytes, as special tokens.
    vocabulary = table.offsets.shape[0] - 1
    known = (index < length) & (tokens >= 0) & (tokens < vocabulary)
    token = jnp.where(known, tokens, 0)
    begin = table.offsets[token]
    sizes = jnp.where(known, table.offsets[token + 1] - begin, 0)
    ends = jnp.cumsum(sizes)

    def count(state: grammar.GrammarState, one: tuple[jax.Array, jax.Array]) -> tuple[grammar.GrammarState, None]:
        token, known = one
        after = grammar.advance(table.counter, state, token)
        return jax.tree.map(lambda a, b: jnp.where(known, a, b), after, state), None

    found = jax.lax.scan(count, grammar.start(table.counter), (token, known))[0].actions
    first, closed = found[0] + 1, found[0] + found[1] + 2
    has_command = command >= 0
    argument = jnp.where(has_command, closed - first - table.closing[command], 0)
    place = first + jnp.arange(size)
    owner = jnp.minimum(jnp.searchsorted(ends, place, side="right", method="scan_unrolled"), tokens.shape[0] - 1)
    text = table.bytes[begin[owner] + place - (ends - sizes)[owner]]
    return Argument(
        text=jnp.where(jnp.arange(size) < argument, text, jnp.uint8(0)),
        length=argument,
        first=jnp.where(has_command, first, 0),
        ignored=jnp.where(has_command, ends[-1] - closed, 0),
    )
