"""Whole responses through the compiled automaton, beside the reference parser."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from agentrl_jax.text import grammar
from agentrl_jax.text.reference import parse_response

MOVES = ("Up", "Down", "Left", "Right")
BATCH, LENGTH = 32, 24


@jax.jit
@functools.partial(jax.vmap, in_axes=(None, 0, 0))
def follow(table, tokens, length):
    """Parses whole responses: tokens i32[B, L], of which the first `length` i32[B] are valid."""

    def step(state, slot):
        token, index = slot
        return grammar.advance(table, state, jnp.where(index < length, token, -1)), None

    steps = (tokens, np.arange(tokens.shape[0], dtype=np.int32))
    return grammar.result(table, jax.lax.scan(step, grammar.start(table), steps)[0])


def moves(think, forced, **options):
    return grammar.ResponseGrammar(actions=MOVES, think=think, forced=forced, **{"max_actions": 3} | options)


def device_parse(table, rows):
    batch = max(BATCH, len(rows))
    tokens = np.zeros((batch, max([LENGTH, *map(len, rows)])), np.int32)
    for slot, row in zip(tokens, rows):
        slot[: len(row)] = row
    lengths = np.array([*map(len, rows)] + [0] * (batch - len(rows)), np.int32)
    found = jax.device_get(follow(table, tokens, lengths))
    return [jax.tree.map(lambda leaf, i=i: leaf[i], found) for i in range(len(rows))]


def assert_equal_to_reference(tokenizer, form, table, rows):
    for row, got in zip(rows, device_parse(table, rows)):
        data = tokenizer.decode_bytes(row)
        want = parse_response(data, form)
        padded = [*want.actions, *[-1] * (form.max_actions - len(want.actions))]
        assert got.actions.tolist() == padded, data
        assert (got.num_valid, got.num_parsed) == (want.num_valid, want.num_parsed), data
        assert got.format_ok == want.format_ok, data


@functools.cache
def slot_names():
    things = [f"{color} {kind}" for kind in ("ball", "box", "open door", "door") for color in ("red", "green", "gray")]
    return (
        *("look", "look up", "drop"),
        *(f"go to {thing} {number}" for thing in things for number in (1, 2, 3)),
        *(f"go through {thing} {number}" for thing in things[6:] for number in (1, 2, 3)),
    )


FRAGMENTS = [
    *["<think>", "</think>", "<answer>", "</answer>", "||", "|", "Up", "down", "LEFT", "Right", "Fly", " ", "\n\t\v"],
    *["<", "</", "an", "swer>", "think>", "U", "p", "x", "√", "你", "\u00a0", "\u212a", "<answer> Up||Up </answer>"],
    *["</think> \n<answer>", "</think><think>", "Left||||Up", "|||Up|", "ſ", "</ANSWER>", "\x1c", "|</answer>"],
    *["</answer", ">"],
]


@functools.cache
def response_rows(tokenizer):
    """Rows of tokens: encoded fragments mixed with arbitrary tokens, special tokens and partial characters."""
    telling = [i for i, data in enumerate(tokenizer.token_bytes) if data and set(b"<>/|\n") & set(data)]
    partial = (b"\xe2", b"\x88", b"\x9a", b"\xc2", b"\xa0")
    halves = [i for i, data in enumerate(tokenizer.token_bytes) if data in partial]
    fragment = st.sampled_from(FRAGMENTS).map(tokenizer.encode)
    single = st.sampled_from(telling) | st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(halves)
    special = st.sampled_from(sorted(tokenizer.special_ids))
    pieces = st.one_of(fragment, fragment, fragment, single.map(lambda i: [i]), special.map(lambda i: [i]))
    row = st.lists(pieces, max_size=20).map(lambda parts: [i for part in parts for i in part][:LENGTH])
    closing, ending = map(tokenizer.encode, ("</think><answer>", "</answer>"))
    likely = row.map(lambda ids: ([*closing, *ids][: LENGTH - len(ending)] + ending)[:LENGTH])
    return st.lists(row | likely, min_size=1, max_size=BATCH)
