"""Talking with a model: the reply is that of whole forward passes, and the cache is kept from turn to turn."""

import io

import jax
import jax.numpy as jnp
import pytest

from agentrl_jax.errors import UserError
from agentrl_jax.evaluate import chat
from agentrl_jax.models import decoder
from agentrl_jax.models.shape import DecoderConfig
from agentrl_jax.models.weights.hf_config_out import describe
from agentrl_jax.models.weights.load import save_pretrained
from agentrl_jax.text import tokenizer as tokenizers
from agentrl_jax.text.conversation import conversation_ids, following_ids

TOKENIZER = tokenizers.load_small()
SHAPE = DecoderConfig(
    vocab_size=TOKENIZER.vocab_size, num_layers=1, width=16, num_heads=2, num_kv_heads=1, head_dim=8, mlp_width=16
)
LENGTH = 160


@pytest.fixture(scope="module")
def params():
    return decoder.init_params(jax.random.key(2), SHAPE)


@pytest.fixture(scope="module")
def likeliest(params):
    @jax.jit
    def after(tokens, length):
        logits = decoder.logits(params, decoder.forward(params, SHAPE, tokens[None]))
        return jnp.argmax(logits[0, length - 1])

    def next_token(ids):
        return int(after(jnp.array(ids + [0] * (LENGTH - len(ids))), len(ids)))

    return next_token


def test_replies_are_those_of_whole_passes_over_several_turns(params, likeliest, monkeypatch):
    """The second message is longer than a chunk, and follows a reply that was cut."""
    monkeypatch.setattr(chat, "CHUNK", 16)
    talk = chat.Conversation(params, SHAPE, TOKENIZER, length=LENGTH)
    first = list(talk.reply("Up?", 5))
    ids = conversation_ids(TOKENIZER, [("user", "Up?")])
    for token in first:
        assert token == likeliest(ids)
        ids.append(token)
    assert talk.ids[: len(ids)] == ids
    ended = len(first) < 5
    second = list(talk.reply("left " * 30, 3))
    ids = talk.ids[: len(ids) + ended] + following_ids(TOKENIZER, "left " * 30, reply_ended=ended)
    assert len(ids) > 2 * 16
    for token in second:
        assert token == likeliest(ids)
        ids.append(token)
    assert talk.ids[: len(ids)] == ids


def test_a_conversation_has_an_end(params):
    talk = chat.Conversation(params, SHAPE, TOKENIZER, length=40, temperature=1.0)
    list(talk.reply("Up?", 1000))
    assert len(talk.ids) <= 40
    with pytest.raises(UserError, match="more than the 40 that it may have"):
        list(talk.reply("Left? " * 20, 5))


def test_seeds_give_other_replies_and_the_same_seed_the_same(params):
    def reply(seed):
        return list(chat.Conversation(params, SHAPE, TOKENIZER, length=60, temperature=1.0, seed=seed).reply("Up?", 20))

    assert reply(1) == reply(1) != reply(2)


def test_the_terminal(params, tmp_path, monkeypatch, capsys):
    files = {"tokenizer.json": TOKENIZER.backend.to_str().encode()}
    save_pretrained(tmp_path / "tiny", params, describe(SHAPE, max_positions=LENGTH), files=files)
    monkeypatch.setattr("sys.stdin", io.StringIO("Up?\nDown?\n"))
    options = {"system": "", "temperature": 0.0, "max_tokens": 4, "length": 100, "seed": 0, "thinking": None}
    chat.chat(str(tmp_path / "tiny"), **options)
    assert capsys.readouterr().out.count("\n") >= 2
    with pytest.raises(UserError, match="nowhere: no such folder"):
        chat.chat("nowhere", **options)
