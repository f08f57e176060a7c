import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_jax.text.thought import compile_thought, thought

BATCH, LENGTH = 16, 24
FRAGMENTS = (
    *("<think>", "</think>", "<answer>", "</th", "<", "think>", "ink>", "</", "</think", ">", " ", "\n", "Up", "x"),
)


@jax.jit
def follow(table, tokens, lengths):
    return jax.vmap(thought, (None, 0, 0))(table, tokens, lengths)


@pytest.fixture(scope="module")
def tables(small):
    return {forced: compile_thought(small, forced=forced) for forced in (True, False)}


def slow(tokenizer, ids, forced):
    data = tokenizer.decode_bytes(ids)
    pattern = rb"(?P<z>.*?)</think>" if forced else rb"<think>(?P<z>.*?)</think>"
    found = re.search(pattern, data, re.DOTALL)
    if not found:
        return [False] * len(ids)
    begin, end = found.span("z")
    sizes = [len(tokenizer.token_bytes[i] or b"") for i in ids]
    ends = np.cumsum(sizes)
    inside = [bool(begin <= stop - size and stop <= end) for size, stop in zip(sizes, ends)]
    words = b"".join(tokenizer.token_bytes[i] or b"" for i, is_in in zip(ids, inside) if is_in)
    return inside if words.strip() else [False] * len(ids)


def device(table, rows):
    tokens = np.zeros((BATCH, LENGTH), np.int32)
    for slot, row in zip(tokens, rows):
        slot[: len(row)] = row
    lengths = np.array([*map(len, rows)] + [0] * (BATCH - len(rows)))
    found = np.asarray(follow(table, tokens, lengths))
    return [found[i, : len(row)].tolist() for i, row in enumerate(rows)]


@pytest.mark.parametrize("forced", [True, False])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_the_thought_is_what_stands_between_the_tags(small, tables, forced, data):
    texts = st.lists(st.lists(st.sampled_from(FRAGMENTS), max_size=8), min_size=1, max_size=BATCH)
    rows = [[i for part in parts for i in small.encode(part)][:LENGTH] for parts in data.draw(texts)]
    for row, got in zip(rows, device(tables[forced], rows)):
        assert got == slow(small, row, forced), small.decode_bytes(row)


def test_cut_and_merged_tags():

    class Tokens:
        token_bytes = (b"<thi", b"nk>a", b"b", b"c</thi", b"nk>", b"</think>d", b" ", None, b"<", b"</think", b">")

    table = compile_thought(Tokens(), forced=False)

    marked = jax.jit(lambda ids, length: thought(table, ids, length))
    for ids, inside in (
        ((0, 1, 2, 2, 3, 4), [2, 3]),
        ((0, 1, 2, 5, 2), [2]),
        ((0, 1, 2, 8, 9, 2, 9, 10), [2, 3, 4, 5]),
        ((0, 1, 6, 7, 5), []),
        ((0, 1, 6, 2, 7, 5), [2, 3, 4]),
        ((0, 1, 2, 9), []),
        ((2, 5), []),
    ):
        padded = jnp.array(ids + (5,) * (8 - len(ids)))
        assert np.flatnonzero(marked(padded, len(ids))).tolist() == inside, ids
