"""The endpoint over HTTP: answers, refusals, limits and the run's own prompt format."""

import asyncio
import dataclasses
import json
import threading
import time
from types import SimpleNamespace

import httpx
import jax
import made_run
import numpy as np
import pytest
import tiny_run
from serving import running

from agentrl_jax.config import load_resolved
from agentrl_jax.errors import UserError
from agentrl_jax.model_server import app, bodies
from agentrl_jax.model_server.app import create_app
from agentrl_jax.model_server.bodies import ChatBody, choice_of
from agentrl_jax.model_server.run import make_sampler
from agentrl_jax.model_server.sampler import Sampled
from agentrl_jax.model_server.served_model import load_served
from agentrl_jax.services.environments.maze import SERVICE, Maze
from agentrl_jax.services.server.limits import Limits
from agentrl_jax.setup import build
from agentrl_jax.setup.service_tasks import Services
from agentrl_jax.text.conversation import SampledResponse, messages_of, turn_ids
from agentrl_jax.text.tokenizer import load_small

ASKED = [{"role": "user", "content": "Up?"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A pretrained model with a chat template."""
    return load_served(str(made_run.write_model(tmp_path_factory.mktemp("models") / "tiny")))


@pytest.fixture(scope="module")
def sampler(model):
    return make_sampler(model, context=1000, max_tokens=16, max_batch=4)


@pytest.fixture(scope="module")
def address(model, sampler):
    with running(create_app(model, sampler, Limits(body_bytes=4000), max_waiting=8)) as url:
        yield url


@pytest.fixture
def ask(address):
    """Function from a body to the answer of /v1/chat/completions, which has to have status 200."""

    def post(path="chat/completions", **body):
        answer = httpx.post(f"{address}/v1/{path}", json=body, timeout=60)
        assert answer.status_code == 200, answer.text
        return answer.json()

    return post


def test_the_model_is_listed(address, model):
    (found,) = httpx.get(f"{address}/v1/models").json()["data"]
    assert (found["id"], found["max_model_len"]) == ("tiny", 512)
    assert abs(found["created"] - time.time()) < 1000
    assert httpx.get(f"{address}/v1/models/tiny").json() == found
    other = httpx.get(f"{address}/v1/models/org/other")
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")
    assert httpx.get(f"{address}/").json() == "ok"


def test_an_answer(ask, model):
    answer = ask(messages=ASKED, temperature=0, max_tokens=5, logprobs=True, return_token_ids=True, model="tiny")
    (choice,) = answer["choices"]
    assert answer["prompt_token_ids"] == model.prompt_ids([("user", "Up?")])
    assert model.tokenizer.decode(answer["prompt_token_ids"], skip_special=False) == "<|user|>Up?<|end|><|assistant|>"
    assert choice["message"] == {"role": "assistant", "content": model.tokenizer.decode(choice["token_ids"])}
    ended = choice["token_ids"][-1] in model.tokenizer.stop_ids
    assert choice["finish_reason"] == ("stop" if ended else "length")
    assert [entry["logprob"] <= 0 for entry in choice["logprobs"]["content"]] == [True] * len(choice["token_ids"])
    count = len(choice["token_ids"])
    prompt = len(answer["prompt_token_ids"])
    assert answer["usage"] == {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
    plain = ask(messages=ASKED, temperature=0, max_tokens=5)
    assert "prompt_token_ids" not in plain
    assert plain["choices"][0]["message"] == choice["message"]


@pytest.mark.parametrize("chat", [True, False])
def test_a_stream_has_the_answer(address, ask, chat):
    path, asked = ("chat/completions", {"messages": ASKED}) if chat else ("completions", {"prompt": "Up?"})
    body = asked | {"temperature": 0, "max_tokens": 5, "n": 2, "logprobs": 1, "return_token_ids": True}
    whole = ask(path, **body)
    more = {"stream": True, "stream_options": {"include_usage": True}}
    with httpx.stream("POST", f"{address}/v1/{path}", json=body | more, timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        *lines, last = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert last == "[DONE]"
    *events, usage = map(json.loads, lines)
    assert usage["choices"] == []
    assert usage["usage"] == whole["usage"]
    assert {event["object"] for event in events} == {"chat.completion.chunk" if chat else "text_completion"}
    assert {event["usage"] for event in events} == {None}
    assert events[0].get("prompt_token_ids") == whole.get("prompt_token_ids")
    for choice in whole["choices"]:
        content, end = [x for event in events for x in event["choices"] if x["index"] == choice["index"]]
        assert (content["finish_reason"], end["finish_reason"]) == (None, choice["finish_reason"])
        assert content["logprobs"] == choice["logprobs"]
        assert content["token_ids"] == choice["token_ids"]
        if chat:
            assert (content["delta"], end["delta"]) == (choice["message"], {})
        else:
            assert (content["text"], end["text"]) == (choice["text"], "")


def test_seeds_and_several_choices(ask):
    def texts(**options):
        answer = ask(messages=ASKED, max_tokens=12, **options)
        return [choice["message"]["content"] for choice in answer["choices"]]

    assert len(set(texts(seed=5, n=3))) == 3
    assert texts(seed=5, n=3) == texts(seed=5, n=3) != texts(seed=6, n=3)
    assert texts(seed=5) == texts(seed=5, n=3)[:1]
    assert texts() != texts()


def test_top_p_and_top_k_restrict_what_is_sampled(ask):
    """At such a temperature all tokens are about equally likely."""

    def ids(**options):
        answer = ask(messages=ASKED, max_tokens=12, seed=3, return_token_ids=True, **{"temperature": 99.0} | options)
        return answer["choices"][0]["token_ids"]

    greedy = ids(temperature=0)
    assert ids() != greedy
    assert ids(top_k=1) == ids(top_p=0) == ids(top_k=5, top_p=1e-6) == greedy
    assert ids(top_k=-1, top_p=1) == ids(top_k=0) == ids(top_k=2**31 - 1) == ids()


def test_messages_that_are_read_alike(model):
    """Among them what OpenAI's client sends back of an answer without calls."""
    parts = [{"role": "user", "content": [{"type": "text", "text": "Up"}, {"type": "text", "text": "?"}]}]
    developer, system = ([{"role": role, "content": "s"}, *ASKED] for role in ("developer", "system"))
    plain = {"role": "assistant", "content": "Up"}
    sent_back = plain | {"tool_calls": [], "function_call": None, "refusal": None, "annotations": []}
    for one, other in ((parts, ASKED), (developer, system), ([*ASKED, sent_back], [*ASKED, plain])):
        assert ChatBody(messages=one).turns(model.tokenizer) == ChatBody(messages=other).turns(model.tokenizer)


def test_a_stop_text_cuts_the_answer(ask, model):
    whole = ask(messages=ASKED, temperature=0, max_tokens=8, return_token_ids=True)["choices"][0]
    ids = whole["token_ids"]
    text = model.tokenizer.decode(ids)
    stop = text[2:4]
    cut = ask(messages=ASKED, temperature=0, max_tokens=8, return_token_ids=True, stop=["\n\n\n", stop])["choices"][0]
    assert cut["message"]["content"] == text[: text.index(stop)]
    assert cut["finish_reason"] == "stop"
    assert cut["token_ids"] == ids[: len(cut["token_ids"])]
    assert stop in model.tokenizer.decode(cut["token_ids"])
    assert stop not in model.tokenizer.decode(cut["token_ids"][:-1])


@pytest.mark.parametrize("stops", [["é"], ["o"], ["absent", "lo w"]])
def test_a_stop_text_is_found_in_few_steps(stops):
    """The tokens that are kept are the fewest whose text holds one, and few beginnings are decoded to find them."""
    tokenizer, decoded = load_small(), []
    ids = tokenizer.encode("a" * 500 + "é hello world" * 40)
    counting = SimpleNamespace(decode=lambda tokens: decoded.append(1) or tokenizer.decode(tokens))
    choice = choice_of(Sampled(ids, [0.0] * len(ids), True), counting, "", stops)
    beginnings = (tokenizer.decode(ids[:count]) for count in range(1, len(ids) + 1))
    kept = next(count for count, text in enumerate(beginnings, start=1) if any(stop in text for stop in stops))
    assert (choice.tokens, len(choice.logprobs), choice.finish_reason) == (ids[:kept], kept, "stop")
    assert len(ids) > 200
    assert len(decoded) < 15


@pytest.mark.parametrize(
    ("path", "asked"), [("chat/completions", {"messages": ASKED}), ("completions", {"prompt": "Up"})]
)
def test_answers_are_made_beside_the_event_loop(ask, monkeypatch, path, asked):
    beside = []

    def noting(function):
        def noted(*args):
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            beside.append(function.__name__)
            return function(*args)

        return noted

    for name in ("choice_of", "chat_answer", "completion_answer"):
        monkeypatch.setattr(bodies, name, noting(getattr(bodies, name)))
    ask(path, max_tokens=2, **asked)
    assert beside == ["choice_of", "chat_answer" if "messages" in asked else "completion_answer"]


def test_earlier_responses_are_read_as_sampled_if_their_tokens_are_given(ask, model):
    """These tokens are not those of their text."""
    ids = [model.tokenizer.encode(letter)[0] for letter in "Left"]
    assert model.tokenizer.encode("Left") != ids
    history = [*ASKED, {"role": "assistant", "content": "Left", "token_ids": ids}, *ASKED]
    answer = ask(messages=history, temperature=0, max_tokens=1, return_token_ids=True)
    turns = [("user", "Up?"), ("assistant", SampledResponse(tuple(ids), ended=False)), ("user", "Up?")]
    assert answer["prompt_token_ids"] == turn_ids(model.tokenizer, model.chat, turns)
    assert any(ids == answer["prompt_token_ids"][at : at + 4] for at in range(20))
    ended = [*ASKED, {"role": "assistant", "token_ids": [*ids, model.tokenizer.end_of_turn_id]}, *ASKED]
    again = ask(messages=ended, temperature=0, max_tokens=1, return_token_ids=True)
    assert again["prompt_token_ids"] == answer["prompt_token_ids"]


def test_a_policy_of_single_turns_reads_no_earlier_ones(model):
    single = dataclasses.replace(model, single_turn=True)
    asked = [("system", "Walk."), ("user", "Up?"), ("assistant", "Down."), ("user", "Left?")]
    assert single.prompt_ids(asked) == model.prompt_ids([asked[0], asked[-1]])
    assert single.prompt_ids(asked[1:]) == model.prompt_ids(asked[-1:])
    assert single.prompt_ids(asked[:2]) == model.prompt_ids(asked[:2])


def test_completions_of_text_and_of_tokens(ask, model):
    ids = model.tokenizer.encode("Up?")
    options = {"path": "completions", "temperature": 0, "max_tokens": 4, "return_token_ids": True, "logprobs": 0}
    text, tokens = (ask(prompt=prompt, **options)["choices"][0] for prompt in ("Up?", ids))
    assert text == tokens
    assert text["prompt_token_ids"] == ids
    assert text["text"] == model.tokenizer.decode(text["token_ids"])
    assert len(text["logprobs"]["token_logprobs"]) == len(text["token_ids"])


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"stream": True, "stream_options": {"usage": True}}, 400, "stream_options.usage"),
        ({"stream_options": {"include_usage": True}}, 400, "stream_options need stream; set it to true"),
        ({"top_p": 1.1}, 400, "top_p is 1.1"), ({"top_p": -0.1}, 400, "top_p is -0.1"),
        ({"top_k": -2}, 400, "top_k is -2"), ({"top_k": 2**31}, 400, "top_k is 2147483648"),
        ({"min_p": 0.1}, 400, "min_p is 0.1"), ({"temperature": -1}, 400, "temperature is -1"),
        ({"max_tokens": 0}, 400, "max_tokens is 0"), ({"max_tokens": 17}, 400, "max_tokens is 17, expected at most 16"),
        ({"max_completion_tokens": 17}, 400, "max_tokens is 17, expected at most 16"),
        ({"n": 65}, 400, "n is 65"), ({"n": 9}, 400, "n is 9, expected at most 8"),
        ({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop has 5 texts"), ({"surprise": 1}, 400, "surprise is 1"),
        ({"model": "gpt"}, 404, "there is no model 'gpt'; expected 'tiny'"), ({"messages": []}, 400, "messages: "),
        ({"messages": [{"role": "assistant", "content": "a"}]}, 400, "the last message is of the assistant"),
        ({"messages": [*ASKED, *ASKED]}, 400, "expected at most one system message"),
        ({"messages": [{"role": "tool", "content": "a"}]}, 400, 'role is "tool"'),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, 'type is "image_url"'),
        ({"messages": [{"role": "user", "token_ids": [3]}]}, 400, "token_ids of a message of the user"),
        ({"messages": [{"role": "user", "content": "Up " * 600}]}, 400, "maximum context length is 512 tokens"),
        ({"messages": [*ASKED, {"role": "assistant", "token_ids": [480]}, *ASKED]}, 400, "expected ids below 480"),
        ({"messages": [*ASKED, {"role": "assistant", "tool_calls": [{"id": "1"}]}, *ASKED]}, 400, "tool_calls of a"),
        ({"messages": [*ASKED, {"role": "assistant", "function_call": {"name": "f"}}, *ASKED]}, 400, "function_call"),
        ({"messages": [{"role": "user", "content": "U" * 5000}]}, 413, "larger than the 4000 bytes allowed"),
    ],
)  # fmt: skip
def test_refusals(address, body, status, words):
    answer = httpx.post(f"{address}/v1/chat/completions", json={"messages": ASKED} | body, timeout=60)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert words in error["message"]
    assert "\n" not in error["message"]
    assert "Value error" not in error["message"]
    assert error.get("code") == {404: "model_not_found"}.get(
        status, "context_length_exceeded" if "context" in words else None
    )


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "chat/completions", None, 405, "Method Not Allowed; expected GET /v1/models, POST"),
        ("POST", "embeddings", {}, 404, "Not Found; expected GET /v1/models"),
        ("POST", "chat/completions", None, 400, "the body is empty, expected a JSON object"),
        ("POST", "chat/completions", b"{", 400, "the body is no strict JSON"),
        ("POST", "chat/completions", [1], 400, "Input should be a valid dictionary"),
    ],
)
def test_all_refusals_have_the_form_of_the_api(address, method, path, body, status, words):
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    answer = httpx.request(method, f"{address}/v1/{path}", content=content, headers=headers, timeout=60)
    assert answer.status_code == status
    assert words in answer.json()["error"]["message"]


class Held:
    """A sampler that answers when the test opens the gate, one request at a time."""

    max_rows = 1

    def __init__(self, sampler):
        self._sampler, self.entered, self.gate = sampler, threading.Event(), threading.Event()
        self.context, self.max_tokens, self.programs = sampler.context, sampler.max_tokens, sampler.programs

    def __call__(self, requests):
        self.entered.set()
        assert self.gate.wait(60)
        return self._sampler(requests)


@pytest.fixture
def held(sampler):
    return Held(sampler)


def post(url, seconds=60, **options):
    return httpx.post(f"{url}/v1/chat/completions", json={"messages": ASKED} | options, timeout=seconds)


def asking(url, found, times=1):
    """Threads that ask, and add their answers to `found`."""
    threads = [threading.Thread(target=lambda: found.append(post(url))) for _ in range(times)]
    for thread in threads:
        thread.start()
    return threads


def until(url, line):
    """Waits until the metrics have a line."""
    end = time.monotonic() + 30
    while line not in httpx.get(f"{url}/metrics").text:
        assert time.monotonic() < end


def test_the_queue_has_an_end(model, held):
    """One request is held inside of the sampler, one waits, and a third finds no room."""
    found = []
    with running(create_app(model, held, Limits(seconds=60), max_waiting=1)) as url:
        threads = asking(url, found)
        assert held.entered.wait(20)
        threads += asking(url, found)
        until(url, "responses_waiting 1.0")
        found.append(post(url))
        held.gate.set()
        for thread in threads:
            thread.join(20)
    assert [answer.status_code for answer in found] == [429, 200, 200]
    assert int(found[0].headers["retry-after"]) >= 1
    assert "1 responses wait" in found[0].json()["error"]["message"]


def test_a_request_has_a_time_limit(model, held):
    """What nobody waits for any more is not sampled, and takes no place in the queue."""
    with running(create_app(model, held, Limits(seconds=0.2), max_waiting=1)) as url:
        for _ in range(3):
            answer = post(url)
            assert answer.status_code == 504
            assert "no answer within 0.2 s" in answer.json()["error"]["message"]
        held.gate.set()


def test_after_an_error_the_rest_of_a_request_is_not_sampled(model, sampler):
    """The first of four responses fails; the second is at work before the answer is given."""

    class Failing(Held):
        calls = 0

        def __call__(self, requests):
            self.calls += 1
            if self.calls == 1:
                raise RuntimeError("RESOURCE_EXHAUSTED")
            return super().__call__(requests)

    failing = Failing(sampler)
    with running(create_app(model, failing, Limits(seconds=60), max_waiting=8)) as url:
        assert post(url, n=4).status_code == 500
        assert "responses_waiting 0.0" in httpx.get(f"{url}/metrics").text
        failing.gate.set()
        assert post(url).status_code == 200
    assert failing.calls <= 3


def test_nothing_is_sampled_for_a_client_that_has_gone(model, held):
    with running(create_app(model, held, Limits(seconds=60), max_waiting=8)) as url:
        for _ in range(3):  # the first is held inside of the sampler, the others wait
            with pytest.raises(httpx.ReadTimeout):
                post(url, 0.3)
        until(url, "responses_waiting 0.0")
        (waiting,) = asking(url, [])
        until(url, "responses_waiting 1.0")
        held.gate.set()
        waiting.join(60)
        assert "responses_sampled 2.0" in httpx.get(f"{url}/metrics").text


def test_the_end_of_the_server_is_an_answer(model, held, monkeypatch):
    """One request is held inside of the sampler, and one waits."""
    monkeypatch.setattr(app, "CLOSE_SECONDS", 0.1)
    found = []
    with running(create_app(model, held, Limits(seconds=60), max_waiting=4)) as url:
        threads = asking(url, found, times=2)
        until(url, "responses_waiting 1.0")
    held.gate.set()
    for thread in threads:
        thread.join(20)
    assert [(each.status_code, each.headers["retry-after"]) for each in found] == [(503, "5")] * 2


def test_a_token_is_asked_for(model, sampler):
    with running(create_app(model, sampler, Limits(token="secret"), max_waiting=8)) as url:
        assert httpx.get(f"{url}/v1/models").status_code == 401
        assert httpx.get(f"{url}/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200


def test_the_format_of_a_run_is_that_of_its_prompts(tmp_path):
    """Compact prompts of the shipped tokenizer: no ends of messages, and an answer tag before the response."""
    shape = "layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16"
    folder = made_run.write_run(tmp_path / "run", shape)
    found = load_served(str(folder))
    config = load_resolved(folder / "config.yaml")
    batched_env = build.build_compiled_env(config, found.tokenizer)
    settings = build.rollout_settings(config, batched_env, 1, 0.0)
    message = batched_env.reset(jax.random.key(0), settings, build.evaluation_ids(np.arange(1), 0))[1]
    ids = [*batched_env.prefix[0].tolist(), *message.tokens[0, : int(message.length[0])].tolist()]
    without_tag = ids[: -len(found.tokenizer.encode("<answer>"))]
    assert found.prompt_ids(messages_of(found.tokenizer, without_tag)) == ids
    assert found.opening == "<answer>"
    assert load_served(str(folder), opening="none").prompt_ids(messages_of(found.tokenizer, without_tag)) == without_tag
    with pytest.raises(UserError, match="there is no checkpoint 3; expected one of last, 7"):
        load_served(str(folder), checkpoint="3")


@pytest.mark.parametrize(("think", "opening"), [("false", "Action:"), ("true", "Thought:")])
def test_the_format_of_a_run_on_a_service_is_that_of_its_prompts(tmp_path, monkeypatch, think, opening):
    """Its prompts end with the beginning of a response to a service."""
    tasks = "tasks: [{env: maze, groups: 2, items: 0-9, held_out: 10-14, validation: 15-19}]\nenv: {url: local}"
    monkeypatch.setattr(made_run, "RUN", made_run.RUN.replace("tasks: [{env: FrozenLake, groups: 2}]", tasks))
    shape = "layers: 1, embed_dim: 16, heads: 2, kv_heads: 1, mlp_width: 16"
    folder = made_run.write_run(tmp_path / "run", shape, f"style: chat, think: {think}")
    found, config = load_served(str(folder)), load_resolved(folder / "config.yaml")
    services = Services(config, lambda: tmp_path)
    batched_env = services.batched_env(found.tokenizer, held_out=True)
    settings = build.rollout_settings(config, batched_env, 1, 0.0)
    message = batched_env.reset(jax.random.key(0), settings, build.evaluation_ids(np.arange(1), 0, np.arange(1)))[1]
    services.close()
    ids = [*batched_env.prefix[0].tolist(), *message.tokens[0, : int(message.length[0])].tolist()]
    shown = [("system", SERVICE.instruction), ("user", Maze().reset(10).observation)]
    assert found.opening == opening
    assert found.prompt_ids(shown) == ids


def test_options_that_cannot_be(tmp_path):
    for words, expected in (
        (["--port", "70000"], "--port is 70000, expected a number from 0 to 65535"),
        (["--max_batch", "0"], "--max_batch is 0, expected at least 1"),
        (["--token_file", str(tmp_path / "none")], "cannot be read"),
        ([], "no such folder"),
    ):
        code, out, err = tiny_run.command("serve-model", str(tmp_path / "nowhere"), *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert expected in err
