"""Conversations as rows of tokens: which are trained, and what cannot be used."""

import dataclasses
from collections import Counter

import chat_families
import numpy as np
import pytest
from known_tokenizers import small  # noqa: F401 (a fixture)

from agentrl_jax.errors import BadValue
from agentrl_jax.offline.conversations import Message
from agentrl_jax.offline.order import Order
from agentrl_jax.offline.rows import CUT, NO_THOUGHT, UNTRAINED, Row, RowFormat, TokenRows, examples, pack
from agentrl_jax.text.chat import chat_format
from agentrl_jax.text.conversation import conversation_ids

SYSTEM, FIRST, NEXT, THIRD = (
    Message(*pair) for pair in zip(("system", *["user"] * 3), ("Act.", "(first)", "(next)", "(third)"))
)
UP, DOWN, LEFT = (Message("assistant", f"<answer>{name}</answer>") for name in ("Up", "Down", "Left"))
TALK = (SYSTEM, FIRST, UP, NEXT, DOWN, THIRD, LEFT)


def form_of(tokenizer, thinking=None, **options):
    return RowFormat(tokenizer, chat_format(tokenizer, thinking), **options)


def only(form, messages):
    dropped = Counter()
    (row,) = form.rows(messages, dropped)
    assert not dropped
    return row


def trained(form, row):
    return form.tokenizer.decode([i for i, flag in zip(*row) if flag], skip_special=False)


@pytest.mark.parametrize(("name", "thinking"), chat_families.CASES)
def test_every_template_trains_replies_with_their_ends(name, thinking):
    tokenizer = chat_families.family(name)
    form = form_of(tokenizer, thinking)
    end = tokenizer.special_name(tokenizer.end_of_turn_id)
    talk = TALK if form.chat.open_system is not None else TALK[1:]
    replies = [message.content for message in talk if message.role == "assistant"]
    if form.chat.opens_thought:
        dropped = Counter()
        assert form.rows(talk, dropped) == []
        assert dropped == {NO_THOUGHT: 1}
        thoughtful = [dataclasses.replace(m, content=f"<think>\nhm\n</think>\n\n{m.content}") for m in talk]
        talk = [m if m.role == "assistant" else old for m, old in zip(thoughtful, talk)]
        replies = [f"hm\n</think>\n\n{reply}" for reply in replies]
    row = only(form, talk)
    assert trained(form, row) == "".join(f"{reply}{end}" for reply in replies)
    text = tokenizer.decode(row.ids, skip_special=False)
    assert all(text.count(message.content) == 1 for message in talk if message.role == "user")
    assert text.count("<think>") == (len(replies) if "<think>" in text else 0)  # one each, never two
    assert len(row.ids) == len(row.trained)


def test_a_row_has_the_ids_of_the_conversation(small):  # noqa: F811
    form = form_of(small)
    row = only(form, TALK)
    assert row.ids == conversation_ids(small, [(m.role, m.content) for m in TALK])[: len(row.ids)]
    unanswered = only(form, (*TALK, FIRST))
    assert unanswered == row
    # What a policy would be shown is not learned, and the flag `loss` is followed.
    forced = only(dataclasses.replace(form, opening="<answer>"), TALK)
    assert trained(form, forced).startswith("Up</answer><|end|>")
    assert sum(forced.trained) < sum(row.trained)
    told = (*TALK[:2], dataclasses.replace(UP, loss=False), *TALK[3:])
    assert trained(form, only(form, told)) == "<answer>Down</answer><|end|><answer>Left</answer><|end|>"
    assert only(dataclasses.replace(form, all_replies=True), told) == row
    none = Counter()
    assert form.rows([dataclasses.replace(m, loss=False) for m in TALK], none) == []
    assert none == {UNTRAINED: 1}


def test_the_limit_of_tokens_cuts_no_reply(small):  # noqa: F811
    form, end = form_of(small), len(only(form_of(small), TALK).ids)
    first = len(only(form, TALK[:3]).ids)
    found = {}
    for limit in (end, end - 1, first + 1, first, first - 1):
        dropped = Counter()
        found[limit] = dataclasses.replace(form, max_tokens=limit).rows(TALK, dropped), dict(dropped)
    assert found[end] == ([only(form, TALK)], {})  # its end token is the last that fits
    assert found[end - 1] == found[first - 1] == ([], {CUT: 1})
    assert found[first] == ([only(form, TALK[:3])], {})
    assert len(found[first + 1][0][0].ids) == first + 1


@pytest.mark.parametrize("turns", [1, 2])
def test_each_reply_is_a_row_in_the_context_of_the_agent(small, turns):  # noqa: F811
    form, dropped = form_of(small, turns=turns), Counter()
    rows = form.rows(TALK, dropped)
    assert not dropped
    assert [trained(form, row) for row in rows] == [f"{m.content}<|end|>" for m in (UP, DOWN, LEFT)]
    whole = form_of(small)
    for number, row in enumerate(rows):
        first = max(number + 1 - turns, 0)
        assert row.ids == only(whole, [SYSTEM, *TALK[1 + 2 * first : 3 + 2 * number]]).ids


def test_answers_of_a_pair_share_the_prompt(small):  # noqa: F811
    form = form_of(small)
    better, worse = form.pair(TALK[:4], ((DOWN, THIRD, LEFT), (UP,)))
    assert trained(form, better) == "<answer>Down</answer><|end|><answer>Left</answer><|end|>"
    assert trained(form, worse) == "<answer>Up</answer><|end|>"
    prompt = worse.trained.index(True)
    assert worse.ids[:prompt] == better.ids[:prompt]
    assert dataclasses.replace(form, max_tokens=len(better.ids) - 1).pair(TALK[:4], ((DOWN, THIRD, LEFT), (UP,))) == CUT


ROWS = TokenRows.of([Row([*range(10 * n, 10 * n + n)], [False, *[k % 2 == 0 for k in range(1, n)]]) for n in (5, 3, 7)])


def test_bins_hold_whole_rows_with_their_trained_tokens():
    assert pack(ROWS.lengths, 8) == [[0, 1], [2]]
    assert sorted(row for rows in pack(np.array([4] * 9), 13) for row in rows) == [*range(9)]
    assert len(pack(np.array([4] * 9), 13)) == 3
    found = examples(ROWS, [[0, 1], [], [2]], 8, 4, packed=True)
    assert found.tokens.tolist()[:2] == [[50, 51, 52, 53, 54, 30, 31, 32], [0] * 8]
    assert found.segment.tolist()[0] == [1, 1, 1, 1, 1, 2, 2, 2]
    assert [row[mask].tolist() for row, mask in zip(found.position, found.mask)] == [[2, 4, 7], [], [2, 4, 6]]
    assert [int(n) for n in found.counts()] == [3, 0, 3] == [int(ROWS.counts[:2].sum()), 0, int(ROWS.counts[2])]
    assert examples(ROWS, [[1]], 3, 1, packed=False).segment is None
    for size, width in ((7, 4), (8, 2)):
        with pytest.raises(BadValue):
            examples(ROWS, [[0, 1]], size, width, packed=True)


def test_every_epoch_has_every_row_once():
    order = Order(rows=10, batch=4, epochs=3, steps=0, seed=1)
    batches = [order.at(step) for step in range(order.count)]
    assert [len(batch) for batch in batches] == [4] * 7 + [2]
    rows = np.concatenate(batches).reshape(3, 10)
    assert all(sorted(epoch) == [*range(10)] for epoch in rows.tolist())
    assert len({tuple(epoch) for epoch in rows.tolist()}) == 3
    again = dataclasses.replace(order, steps=8)  # as a run's folder keeps it
    assert [again.at(step).tolist() for step in range(8)] == [batch.tolist() for batch in batches]
    assert dataclasses.replace(order, seed=2).at(0).tolist() != batches[0].tolist()
    longer = dataclasses.replace(order, steps=9)
    assert [len(longer.at(step)) for step in (7, 8)] == [4, 4]
    assert (order.epoch(5), order.epoch(8), longer.epoch(9)) == (2.0, 3.0, 3.6)
    assert dataclasses.replace(order, batch=99, epochs=1).count == 1
