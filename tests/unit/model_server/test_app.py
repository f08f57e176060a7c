import asyncio
import concurrent.futures
import dataclasses
import functools
import json
import time
from types import SimpleNamespace

import httpx
import pytest
from counting import wait_until
from echo_sampler import Echo
from serving import HTTP, running

from agentrl_jax.model_server import bodies
from agentrl_jax.model_server.app import create_app
from agentrl_jax.model_server.bodies import ChatBody, choice_of
from agentrl_jax.model_server.sampler import Sampled
from agentrl_jax.model_server.served_model import make_sampler
from agentrl_jax.services.server.limits import Limits
from agentrl_jax.text.conversation import SampledResponse, turn_ids
from agentrl_jax.text.tokenizer import load_small

ASKED = [{"role": "user", "content": "Up?"}]
ROUTES = {"chat/completions": {"messages": ASKED}, "completions": {"prompt": "Up?"}}


@pytest.fixture(scope="module")
def address(model):
    sampler = make_sampler(model, context=1000, max_tokens=16, max_batch=4)
    with running(create_app(model, sampler, Limits(body_bytes=4000), max_waiting=8)) as url:
        yield url


@pytest.fixture
def ask(address):
    def ask(path="chat/completions", **body):
        answer = HTTP.post(f"{address}/v1/{path}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return ask


def test_the_model_is_listed(address):
    (found,) = HTTP.get(f"{address}/v1/models").json()["data"]
    assert (found["id"], found["max_model_len"]) == ("tiny", 512)
    assert abs(found["created"] - time.time()) < 1000
    assert HTTP.get(f"{address}/v1/models/tiny").json() == found
    other = HTTP.get(f"{address}/v1/models/org/other")
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")
    assert HTTP.get(f"{address}/").json() == "ok"


def test_an_answer(ask, model):
    answer = ask(messages=ASKED, temperature=0, max_tokens=5, logprobs=True, return_token_ids=True, model="tiny")
    (choice,) = answer["choices"]
    prompt, ids = answer["prompt_token_ids"], choice["token_ids"]
    assert prompt == model.prompt_ids([("user", "Up?")])
    assert model.tokenizer.decode(prompt, skip_special=False) == "<|user|>Up?<|end|><|assistant|>"
    assert choice["message"] == {"role": "assistant", "content": model.tokenizer.decode(ids)}
    assert choice["finish_reason"] == ("stop" if ids[-1] in model.tokenizer.stop_ids else "length")
    assert [entry["logprob"] <= 0 for entry in choice["logprobs"]["content"]] == [True] * len(ids)
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids), "total_tokens": len(prompt) + len(ids)}
    assert answer["usage"] == usage
    plain = ask(messages=ASKED, temperature=0, max_tokens=5)
    assert "prompt_token_ids" not in plain
    assert plain["choices"][0]["message"] == choice["message"]
    text = choice["message"]["content"]
    (ended,) = ask(messages=ASKED, temperature=0, max_tokens=5, stop=["\n\n\n", text[1:3]])["choices"]
    assert (ended["message"]["content"], ended["finish_reason"]) == (text[: text.index(text[1:3])], "stop")


@pytest.mark.parametrize("path", ROUTES)
def test_a_stream_has_the_answer(address, ask, path):
    chat = path == "chat/completions"
    body = ROUTES[path] | {"temperature": 0, "max_tokens": 5, "n": 2, "logprobs": 1, "return_token_ids": True}
    whole = ask(path, **body)
    more = {"stream": True, "stream_options": {"include_usage": True}}
    with HTTP.stream("POST", f"{address}/v1/{path}", json=body | more) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *lines, last = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert last == "[DONE]"
    *events, usage = map(json.loads, lines)
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert {event["object"] for event in events} == {"chat.completion.chunk" if chat else "text_completion"}
    assert {event["usage"] for event in events} == {None}
    assert events[0].get("prompt_token_ids") == whole.get("prompt_token_ids")
    for choice in whole["choices"]:
        content, end = [x for event in events for x in event["choices"] if x["index"] == choice["index"]]
        assert (content["finish_reason"], end["finish_reason"]) == (None, choice["finish_reason"])
        assert (content["logprobs"], content["token_ids"]) == (choice["logprobs"], choice["token_ids"])
        field, nothing = ("delta", {}) if chat else ("text", "")
        assert (content[field], end[field]) == (choice["message" if chat else "text"], nothing)


def test_seeds_several_choices_and_restricted_sampling(ask):
    def ids(**options):
        answer = ask(messages=ASKED, max_tokens=12, return_token_ids=True, **options)
        return [choice["token_ids"] for choice in answer["choices"]]

    three = ids(seed=5, n=3)
    assert len(set(map(tuple, three))) == 3
    assert three == ids(seed=5, n=3) != ids(seed=6, n=3)
    assert ids(seed=5) == three[:1] != ids(seed=5 + 2**32)
    assert ids() != ids()
    greedy, hot = ids(temperature=0), {"seed": 3, "temperature": 99.0}  # at which all tokens are about equally likely
    assert ids(**hot) != greedy
    assert all(ids(**hot, **rule) == greedy for rule in ({"top_k": 1}, {"top_p": 0}, {"top_k": 5, "top_p": 1e-6}))
    assert all(ids(**hot, top_k=top_k, top_p=1) == ids(**hot) for top_k in (-1, 0, 2**31 - 1))


def test_messages_that_are_read_alike_and_earlier_ones_that_a_policy_of_single_turns_does_not_read(model):
    """Among them what OpenAI's client sends back of an answer without calls."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "Up"}, {"type": "text", "text": "?"}]}]
    developer, system = ([{"role": role, "content": "s"}, *ASKED] for role in ("developer", "system"))
    plain = {"role": "assistant", "content": "Up"}
    sent_back = plain | {"tool_calls": [], "function_call": None, "refusal": None, "annotations": []}
    for one, other in ((parts, ASKED), (developer, system), ([*ASKED, sent_back], [*ASKED, plain])):
        assert ChatBody(messages=one).turns(model.tokenizer) == ChatBody(messages=other).turns(model.tokenizer)
    single = dataclasses.replace(model, turns=1)
    asked = [("system", "Walk."), ("user", "Up?"), ("assistant", "Down."), ("user", "Left?")]
    assert single.prompt_ids(asked) == model.prompt_ids([asked[0], asked[-1]])
    assert single.prompt_ids(asked[1:]) == model.prompt_ids(asked[-1:])
    assert single.prompt_ids(asked[:2]) == model.prompt_ids(asked[:2])


@pytest.mark.parametrize(("stops", "before"), [(["é"], ""), (["absent", "world", "lo w"], "é hel")])
def test_a_stop_text_is_found_in_few_steps(stops, before):
    """The tokens that are kept are the fewest whose text holds one, and few beginnings are decoded to find them."""
    tokenizer, decoded = load_small(), []
    ids = tokenizer.encode("a" * 500 + "é hello world" * 40)
    counting = SimpleNamespace(decode=lambda tokens: decoded.append(1) or tokenizer.decode(tokens))
    choice = choice_of(Sampled(ids, [0.0] * len(ids), True), counting, "", stops)
    kept = len(choice.tokens)
    assert (choice.tokens, len(choice.logprobs), choice.finish_reason) == (ids[:kept], kept, "stop")
    assert choice.text == "a" * 500 + before
    assert [stops[-1] in tokenizer.decode(ids[:count]) for count in (kept - 1, kept)] == [False, True]
    assert len(decoded) < 15 < 200 < len(ids)


def test_answers_are_made_beside_the_event_loop(ask, monkeypatch):
    beside = []

    def note(name, function, *args):
        with pytest.raises(RuntimeError, match="no running event loop"):
            asyncio.get_running_loop()
        beside.append(name)
        return function(*args)

    for name in ("choice_of", "chat_answer", "completion_answer"):
        monkeypatch.setattr(bodies, name, functools.partial(note, name, getattr(bodies, name)))
    for path, asked in ROUTES.items():
        ask(path, max_tokens=2, **asked)
    assert beside == ["choice_of", "chat_answer", "choice_of", "completion_answer"]


def test_earlier_responses_are_read_as_sampled_if_their_tokens_are_given(ask, model):
    """These tokens are not those of their text."""
    ids = [model.tokenizer.encode(letter)[0] for letter in "Left"]
    assert model.tokenizer.encode("Left") != ids

    def prompt(**said):
        return ask(messages=after(**said), max_tokens=1, return_token_ids=True)["prompt_token_ids"]

    turns = [("user", "Up?"), ("assistant", SampledResponse(tuple(ids), ended=False)), ("user", "Up?")]
    found = prompt(content="Left", token_ids=ids)
    assert found == turn_ids(model.tokenizer, model.chat, turns)
    assert any(ids == found[at : at + 4] for at in range(20))
    assert prompt(token_ids=[*ids, model.tokenizer.end_of_turn_id]) == found


def after(**said):
    return [*ASKED, {"role": "assistant", **said}, *ASKED]


REFUSED = [
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
    ({"stream_options": {"include_usage": True}}, "stream_options need stream"),
    *(({name: value}, f"{name} is {value}") for name, value in (("top_p", 1.1), ("top_p", -0.1), ("top_k", -2))),
    *(({name: value}, f"{name} is {value}") for name, value in (("top_k", 2**31), ("surprise", 1), ("n", 65))),
    *(({name: value}, f"{name} is {value}") for name, value in (("temperature", -1), ("max_tokens", 0))),
    *(({name: 17}, "max_tokens is 17, expected at most 16") for name in ("max_tokens", "max_completion_tokens")),
    ({"n": 9}, "n is 9, expected at most 8"), ({"stop": ["a", "b", "c", "d", "e"]}, "stop has 5 texts"),
    ({"model": "gpt"}, "there is no model 'gpt'; expected 'tiny'"), ({"messages": []}, "messages: "),
    ({"messages": after()[:2]}, "the last message is of the assistant"),
    ({"messages": [*ASKED, *ASKED]}, "expected at most one system message"),
    ({"messages": [{"role": "tool", "content": "a"}]}, 'role is "tool"'),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 'type is "image_url"'),
    ({"messages": [{"role": "user", "token_ids": [3]}]}, "token_ids of a message of the user"),
    ({"messages": [{"role": "user", "content": "Up " * 600}]}, "maximum context length is 512 tokens"),
    ({"messages": after(token_ids=[480])}, "expected ids below 480"),
    ({"messages": after(tool_calls=[{"id": "1"}])}, "tool_calls of a"),
    ({"messages": after(function_call={"name": "f"})}, "function_call"),
    ({"messages": [{"role": "user", "content": "U" * 5000}]}, "larger than the 4000 bytes allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "words"), REFUSED)
def test_refusals(address, body, words):
    answer = HTTP.post(f"{address}/v1/chat/completions", json={"messages": ASKED} | body)
    assert answer.status_code == (404 if "no model" in words else 413 if "larger" in words else 400)
    error = answer.json()["error"]
    assert words in error["message"]
    assert not any(part in error["message"] for part in ("\n", "Value error"))
    codes = {"there is no model": "model_not_found", "maximum context": "context_length_exceeded"}
    assert error.get("code") == next((code for start, code in codes.items() if words.startswith(start)), None)


def test_all_refusals_have_the_form_of_the_api(address):
    chat, headers = "chat/completions", {"Content-Type": "application/json"}
    for method, path, content, status, words in (
        ("GET", chat, None, 405, "Method Not Allowed; expected GET /v1/models, POST"),
        ("POST", "embeddings", b"{}", 404, "Not Found; expected GET /v1/models"),
        ("POST", chat, None, 400, "the body is empty"),
        ("POST", chat, b"{", 400, "the body is no strict JSON"),
        ("POST", chat, b"[1]", 400, "Input should be a valid dictionary"),
    ):
        answer = HTTP.request(method, f"{address}/v1/{path}", content=content, headers=headers)
        assert answer.status_code == status
        assert words in answer.json()["error"]["message"]


@pytest.fixture
def held():
    return Echo(held=True, max_rows=1)


POOL = concurrent.futures.ThreadPoolExecutor(4)


def post(url, seconds=60, **options):
    return HTTP.post(f"{url}/v1/chat/completions", json={"messages": ASKED} | options, timeout=seconds)


def has(url, line):
    return line in HTTP.get(f"{url}/metrics").text


def test_the_queue_has_an_end(model, held):
    with running(create_app(model, held, Limits(seconds=60), max_waiting=1)) as url:
        asked = [POOL.submit(post, url)]
        assert held.entered.wait(20)
        asked.append(POOL.submit(post, url))
        wait_until(lambda: has(url, "responses_waiting 1.0"))
        refused = post(url)
        held.gate.set()
        assert [each.result(20).status_code for each in asked] == [200, 200]
    assert (refused.status_code, int(refused.headers["retry-after"]) >= 1) == (429, True)
    assert "1 responses wait" in refused.json()["error"]["message"]


def test_a_request_has_a_time_limit(model, held):
    """What nobody waits for any more is not sampled, and takes no place in the queue."""
    with running(create_app(model, held, Limits(seconds=0.2), max_waiting=1)) as url:
        for _ in range(3):
            answer = post(url)
            assert answer.status_code == 504
            assert "no answer within 0.2 s" in answer.json()["error"]["message"]
        held.gate.set()


def test_after_an_error_the_rest_of_a_request_is_not_sampled(model):
    """The first of four responses fails; the second is at work before the answer is given."""
    failing = Echo(held=True, max_rows=1, failing=(1,))
    with running(create_app(model, failing, Limits(seconds=60), max_waiting=8)) as url:
        assert post(url, n=4).status_code == 500
        assert has(url, "responses_waiting 0.0")
        failing.gate.set()
        assert post(url).status_code == 200
    assert len(failing.sizes) <= 3


def test_nothing_is_sampled_for_a_client_that_has_gone(model, held):
    with running(create_app(model, held, Limits(seconds=60), max_waiting=8)) as url:
        for _ in range(3):  # the first is held inside of the sampler, the others wait
            with pytest.raises(httpx.ReadTimeout):
                post(url, 0.2)
        wait_until(lambda: has(url, "responses_waiting 0.0"))
        waiting = POOL.submit(post, url)
        wait_until(lambda: has(url, "responses_waiting 1.0"))
        held.gate.set()
        waiting.result(60)
        assert has(url, "responses_sampled 2.0")
