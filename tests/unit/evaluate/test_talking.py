"""Chatting with a model: responses equal those of full forward passes, and the cache is kept between turns."""

import io
from unittest import mock

import huggingface_hub
import jax
import made_run
import pytest
import refusing
import tiny_run
from evaluating import refusal
from made_run import SHAPE

from agentrl_jax.evaluate import chat
from agentrl_jax.models import decoder
from agentrl_jax.text import tokenizer as tokenizers
from agentrl_jax.text.conversation import conversation_ids, following_ids

TOKENIZER = tokenizers.padded(tokenizers.load_small(), SHAPE.vocab_size)
LENGTH = 160


@pytest.fixture(scope="module")
def params():
    return decoder.init_params(jax.random.key(2), SHAPE)


def test_responses_are_those_of_whole_passes_over_several_turns(params, monkeypatch):
    """The second message is longer than a chunk, and follows a truncated response."""
    monkeypatch.setattr(chat, "CHUNK", 16)
    after = made_run.next_logprobs(params, SHAPE, LENGTH)
    talk = chat.Conversation(params, SHAPE, TOKENIZER, length=LENGTH)

    def check(ids, response):
        for token in response:
            assert token == after(ids).argmax()
            ids.append(token)
        assert talk.ids[: len(ids)] == ids

    first = list(talk.respond("Up?", 5))
    check(ids := conversation_ids(TOKENIZER, [("user", "Up?")]), first)
    ended = len(first) < 5
    second = list(talk.respond("left " * 30, 3))
    ids = talk.ids[: len(ids) + ended] + following_ids(TOKENIZER, "left " * 30, response_ended=ended)
    assert len(ids) > 2 * 16
    check(ids, second)


def test_a_conversation_has_an_end(params):
    of_40 = params, SHAPE, TOKENIZER
    talk = chat.Conversation(*of_40, length=40, temperature=1.0)
    list(talk.respond("Up?", 1000))
    assert len(talk.ids) <= 40
    assert "more than the 40 that it may have" in str(refusing.refusal(list, talk.respond("Left? " * 20, 5)))

    def response(seed):
        return list(chat.Conversation(*of_40, temperature=1.0, seed=seed, length=40).respond("Up?", 20))

    assert response(1) == response(1) != response(2)


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    return made_run.write_model(tmp_path_factory.mktemp("models") / "thinker", made_run.THINKING)


def test_the_terminal(thinker, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Up?\nDown?\n"))
    out = tiny_run.done("chat", str(thinker), "--temperature", "0", "--max_tokens", "4", "--length", str(LENGTH))
    assert out.count("\n") >= 2
    assert refusal("chat", "org/name").key == "org/name"


def test_thinking_is_what_the_run_was_trained_with_unless_chosen(thinker, tmp_path, monkeypatch):
    model = f"pretrained: {thinker}, lora: {{rank: 2, alpha: 3.0}}"
    run = made_run.write_run(tmp_path / "run", model, "think: true, max_response_tokens: 8")
    asked = mock.Mock()
    monkeypatch.setattr(chat, "Conversation", asked)
    for words in ([str(run)], [str(run), "--thinking", "off"], [str(thinker)], [str(thinker), "--thinking", "on"]):
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        tiny_run.done("chat", *words)
    assert [call.kwargs["thinking"] for call in asked.call_args_list] == [True, False, None, True]
    monkeypatch.undo()
    # A think block is inserted where none is wanted.
    found = chat.speaker(str(thinker))

    def read(thinking):
        talk = chat.Conversation(*found[:3], length=60, thinking=thinking)
        next(talk.respond("Up?", 1), None)
        return found.tokenizer.decode(talk.ids[:-1], skip_special=False)

    assert read(True) == read(None) == "<|user|>Up?<|end|><|assistant|>"
    assert read(False) == "<|user|>Up?<|end|><|assistant|><think></think>"


def test_a_name_on_the_hub_is_asked_for_when_the_user_says_so(thinker, monkeypatch, tmp_path):
    download = mock.Mock(return_value=str(thinker))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert chat.speaker("org/name", online=True, revision="abc").positions == 512
    assert (download.call_args.args, download.call_args.kwargs["revision"]) == (("org/name",), "abc")
    made_run.write_run(tmp_path / "run", "pretrained: org/name, online: true, revision: def")
    assert download.call_args.kwargs["revision"] == "def"
    plain = made_run.write_model(tmp_path / "plain")
    assert "--thinking on has no effect" in str(refusal("chat", plain, "--thinking", "on"))
