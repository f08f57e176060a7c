"""The client of chat endpoints: what is asked again, what is given up, and what is never shown."""

import concurrent.futures
import contextlib
import email.utils
import threading
import time

import pytest
from fake_api import FakeApi, completion
from refusing import refusal
from scripted_server import Listening

from agentrl_jax.errors import UserError
from agentrl_jax.evaluate.api_models import client as clients
from agentrl_jax.evaluate.api_models.answers import BadReply, read_reply, reply_of_error, without_thought
from agentrl_jax.evaluate.api_models.client import ChatClient, GivenUp, Refused, retry_after

ASKED = [{"role": "user", "content": "Up?"}]
KEY = "sk-very-secret"


@pytest.fixture
def ask():
    """Function from an answer and faults to the reply, the endpoint and the client."""

    def made(answer="Down.", faults=(), **options):
        api = FakeApi(answer if callable(answer) else lambda body: answer, faults)
        with api.running() as url:
            client = ChatClient(url, "m", key=KEY, **{"retries": 3, "seconds": 20, **options})
            try:
                return client.ask(ASKED, seed=7), api, client
            finally:
                client.close()

    return made


def test_a_request_and_its_reply(ask):
    reply, api, client = ask(options={"temperature": 0.5, "max_tokens": 9, "top_p": None})
    assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == ("Down.", 100, 10)
    assert api.requests == [{"model": "m", "messages": ASKED, "seed": 7, "temperature": 0.5, "max_tokens": 9}]
    assert api.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert (client.requests, client.retried) == (1, 0)
    assert ask(options={"seed": None})[1].requests == [{"model": "m", "messages": ASKED}]


def test_what_is_asked_again(ask):
    """Besides the faults of test_evaluate.py."""
    for fault in (
        (521, {}, b"the origin is down"),
        (503, {"Content-Encoding": "gzip"}, b"not compressed"),
        (200, {}, {"choices": []}),
        (200, {}, {"error": {"message": "the provider failed", "code": 502}}),
        (200, {}, b'{"choices": NaN}'),
        (200, {}, completion("cut he", "abort")),  # vLLM 0.32, when /pause breaks off what is being sampled
        (200, {}, completion("cut he", "network_error")),  # GLM
    ):
        reply, api, client = ask(faults=[fault, fault])
        assert (reply.text, len(api.requests), client.requests, client.retried) == ("Down.", 3, 3, 2)


def test_requests_have_an_end(ask):
    reply, api, _ = ask((400, {}, {"error": {"message": TOO_LONG[0]}}))
    assert (reply.finish, reply.text, len(api.requests)) == ("length", "", 1)
    reply, api, _ = ask(faults=["hang"], seconds=0.3)
    assert (reply.text, len(api.requests)) == ("Down.", 2)
    with pytest.raises(GivenUp, match="status 500: oops; given up after 4 attempts"):
        ask(faults=[(500, {}, {"error": {"message": "oops"}})] * 9)
    with pytest.raises(GivenUp, match="which asks to wait 3600 s; given up after 1 attempts"):
        ask(faults=[(429, {"Retry-After": "3600"}, {"error": "come tomorrow"})])


def test_a_server_says_how_long_to_wait(monkeypatch):
    monkeypatch.setattr(clients, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr(clients, "LONGEST_PAUSE", 60.0)
    waits = []
    api = FakeApi(lambda body: "Down.", [(429, {"Retry-After": "7"}, {}), (503, {}, {})])
    with api.running() as url, contextlib.closing(ChatClient(url, "m", retries=3)) as client:
        monkeypatch.setattr(client._stopped, "wait", waits.append)
        client.ask(ASKED)
    assert 7.5 <= waits[0] <= 8.0
    assert 1.0 <= waits[1] <= 2.0
    # It gives dates and other values.
    past, later = (email.utils.formatdate(when, usegmt=True) for when in (0, time.time() + 100))
    assert 90 < retry_after({"retry-after": later}) <= 100
    found = [retry_after({"retry-after": value}) for value in (past, "2.5", "-3", "soon", "", "nan")]
    assert found == [0, 2.5, 0, 0, 0, 0]


def test_what_is_refused_for_good_is_not_asked_again(ask):
    headers = {"Location": f"https://elsewhere/v1?key={KEY}"}
    for status, error, words in (
        (402, {"message": "no credit"}, "status 402: no credit"),
        (401, {"message": f"Incorrect key {KEY}"}, r"status 401: Incorrect key \*\*\*; give the key"),
        (404, {"message": "no such model"}, "no such model; check the name of the model"),
        (429, {"message": "no money", "code": "insufficient_quota"}, "status 429: no money"),
        (501, {"message": "not here"}, "status 501: not here"),
        (302, {}, r"status 302: .*redirects to https://elsewhere/v1\?key=\*\*\*; give that server"),
    ):
        with pytest.raises(UserError, match=words) as refused:
            ask(faults=[(status, headers, {"error": error})])
        assert KEY not in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_refusal_for_no_known_reason_ends_one_conversation_after_its_retries():
    for status, answer, words in (
        (403, {"error": {"message": f"{KEY} may not"}}, r"status 403: \*\*\* may not"),
        (422, {"detail": "Unexpected fields: {'return_token_ids'}"}, "leave out --token_ids, which this server"),
        # llama-cpp-python 0.3.36 answers an invalid field with status 500.
        (500, {"error": {"message": "1 validation error: {'loc': ('body', 'top_p')}"}}, "validation error: .*top_p"),
        (200, {"choices": []}, "the answer has no choices"),
    ):
        api = FakeApi(lambda body: "yes", [(status, {}, answer)] * 7)
        with api.running() as url, contextlib.closing(ChatClient(url, "m", key=KEY, retries=8)) as client:
            for _ in range(2):
                with pytest.raises(Refused, match=words):
                    client.ask(ASKED)
            assert len(api.requests) == 2 * (1 + clients.REFUSED_RETRIES)
            assert client.ask(ASKED).text == "yes", "the last fault is asked again"
            assert client.replied


def test_the_key_is_hidden_in_a_reply(ask):
    """But for keys such as `x`, which are parts of words."""
    with FakeApi(lambda body: "an ox").running() as url, contextlib.closing(ChatClient(url, "m", key="x")) as client:
        assert client.ask(ASKED).text == "an ox"
    answer = completion(f"It is {KEY}.", reasoning_content=KEY) | {"model": KEY, "prompt_token_ids": [1]}
    answer["choices"][0]["token_ids"] = [2]
    reply = ask(answer)[0]
    assert KEY not in str(reply)
    assert (reply.text, reply.prompt_token_ids, reply.token_ids) == ("It is ***.", None, None)
    split = completion("Up")
    split["choices"][0]["logprobs"] = {"content": [{"token": half, "logprob": -1.0} for half in (KEY[:5], KEY[5:])]}
    assert ask(split)[0].logprobs is None
    assert ask(completion(None, refusal=f"not with {KEY}"))[0].refusal == "not with ***"
    long = (400, {}, {"error": {"message": "context " * 61 + KEY, "code": "context_length_exceeded"}})
    assert "secret" not in ask(long)[0].refusal, "where a message is cut"


@pytest.mark.parametrize("pieces", [b"HTTP/1.1 200 OK\r\nX-Slow: ", b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n"])
def test_an_answer_in_drops_is_given_up_in_time(pieces):
    """Each byte comes soon enough, in the headers or in the body."""
    ended = threading.Event()

    def drip(handler, data):
        with contextlib.suppress(OSError):
            handler.wfile.write(pieces)
            while True:
                handler.wfile.write(b"x")
                time.sleep(0.02)
        ended.set()

    with Listening(drip) as server, contextlib.closing(ChatClient(server.url, "m", retries=0, seconds=0.3)) as client:
        with pytest.raises(GivenUp, match=r"no whole answer within 0.3 s"):
            client.ask(ASKED)
        assert ended.wait(20), "the connection is closed"
        server.shutdown()


def test_closing_ends_those_who_wait():
    api = FakeApi(lambda body: "yes", ["hang"])
    with api.running() as url, concurrent.futures.ThreadPoolExecutor() as threads:
        client = ChatClient(url, "m", seconds=600)
        waiting = threads.submit(client.ask, ASKED)
        while not api.requests:
            time.sleep(0.001)
        client.close()
        for ask in (lambda: waiting.result(20), lambda: client.ask(ASKED)):
            with pytest.raises(GivenUp, match="the evaluation ends"):
                ask()


TOO_LONG = [
    "This model's maximum context length is 512 tokens. However, your prompt contains at least 513",  # vLLM
    "request (631 tokens) exceeds the available context size (512 tokens), try increasing it",  # llama-server
    "The input (631 tokens) is longer than the model's context length (512 tokens).",  # SGLang
    "The decoder prompt (length 9) is longer than the maximum model length of 8.",  # vLLM
    "the model is loaded with context length of only 8 tokens",  # LM Studio
    "prompt is too long: 631 tokens > 512 maximum",  # Anthropic
    "The input token count (9) exceeds the maximum number of tokens",  # Gemini
    "`inputs` must have less than 8 tokens. Given: 9",  # Text Generation Inference
    "This model's maximum prompt length is 131072 but the request contains 136973 tokens.",  # xAI
    "[input_too_large] Current message (1149677 tokens) exceeds budget (975424 tokens)",
    "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)",  # Moonshot
    "model max length exceeded, max length:8192",
    "Input is too long for requested model.",  # Bedrock
    "Prompt exceeds max length",  # GLM
    "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 9120",  # OpenAI, Groq
]


def test_errors_that_stand_for_a_reply():
    wrapped = [(422, [{"error": {"code": 400, "message": words}}], "length") for words in TOO_LONG]
    # As OpenAI, xAI, Bedrock, SGLang and Gemini wrap a message.
    for body in ({"error": TOO_LONG[0]}, {"message": TOO_LONG[0]}, {"detail": TOO_LONG[0]}):
        wrapped.append((400, body, "length"))
    for status, body, finish in (
        *wrapped,
        (429, {"error": {"message": TOO_LONG[-1], "code": "rate_limit_exceeded"}}, "length"),
        (413, "<html>Request Entity Too Large</html>", "length"),
        (400, {"error": {"message": "words", "code": "context_length_exceeded"}}, "length"),
        (400, {"error": {"code": "1261", "message": "words"}}, "length"),
        (400, {"error": {"code": 400, "message": "words", "type": "exceed_context_size_error"}}, "length"),
        (400, {"error": {"message": "filtered", "code": "content_filter"}}, "refusal"),
        (400, {"error": {"message": "flagged", "code": "invalid_prompt"}}, "refusal"),
        (500, {"error": {"message": TOO_LONG[0]}}, None),
        (429, {"error": {"message": "Rate limit reached on tokens per minute"}}, None),
        (400, {"error": {"message": "temperature is too long a word"}}, None),
    ):
        found = reply_of_error(status, body)
        assert (found and (found.finish, found.text)) == (finish and (finish, "")), (status, body)


def test_how_a_reply_can_end():
    for answer, finish, text in (
        (completion("cut he", "length"), "length", "cut he"),
        (completion("cut he", "MAX_TOKENS"), "length", "cut he"),
        (completion(None, refusal="I cannot help."), "refusal", ""),
        (completion(None, "content_filter: PROHIBITED_CONTENT"), "refusal", ""),
        (completion("", "sensitive"), "refusal", ""),
        (completion("ok", None), "stop", "ok"),
        (completion([{"type": "text", "text": "o"}, {"type": "text", "text": "k"}]), "stop", "ok"),
        (completion(None, "tool_calls", tool_calls=[{"id": "1"}]), "stop", ""),
        (completion("", "function_call_filter: MALFORMED_FUNCTION_CALL"), "stop", ""),
        ({"choices": [{"finish_reason": "MALFORMED_FUNCTION_CALL"}]}, "stop", ""),
        ({"choices": [{"finish_reason": "tool_calls", "message": None}]}, "stop", ""),
        ({"choices": [{"finish_reason": "SAFETY"}]}, "refusal", ""),
    ):
        reply = read_reply(answer)
        assert (reply.finish, reply.text) == (finish, text)


def test_reasoning_tokens_and_ids_are_kept_apart():
    answer = completion("Up", reasoning_content="hm")
    answer["usage"] |= {"completion_tokens_details": {"reasoning_tokens": 4}}
    answer["usage"] |= {"prompt_tokens_details": {"cached_tokens": 64}}
    answer["prompt_token_ids"], answer["choices"][0]["token_ids"] = [1, 2], [3]
    reply = read_reply(answer)
    assert (reply.text, reply.reasoning, reply.reasoning_tokens, reply.cached_tokens) == ("Up", "hm", 4, 64)
    assert (reply.prompt_token_ids, reply.token_ids) == ([1, 2], [3])
    assert read_reply(completion("Up", reasoning="hm")).reasoning == "hm"
    odd = {"usage": {"prompt_tokens": "many", "completion_tokens": -1}, "prompt_token_ids": [1, "2"], "model": 3}
    reply = read_reply(completion("Up") | odd)
    assert (reply.prompt_tokens, reply.completion_tokens, reply.prompt_token_ids, reply.model) == (None, None, None, "")
    # A thought at the start is not said.
    assert without_thought("\n<think>\na\n</think>\n\nb</think>") == "\n\nb</think>"
    assert without_thought("a</think>b") == "b"
    for said in ("a <think>b</think> c", "<think>a", "a"):
        assert without_thought(said) == said
    for answer in (None, [], "", {}, {"choices": {}}, {"choices": [1]}, {"choices": [{"message": 1}]}):
        with pytest.raises(BadReply):
            read_reply(answer)


def test_a_server_that_was_never_there():
    with contextlib.closing(ChatClient("http://127.0.0.1:9/v1", "m", retries=8)) as client:
        assert "cannot be reached" in str(refusal(client.ask, ASKED))
    assert client.requests == clients.UNREACHED_ATTEMPTS
    # Addresses that are none.
    odd = ("ftp://host/v1", "", "http://", "http://host:port/v1", "http://host/v1?key=1", "http://host/v1#x")
    for url in (*odd, "http://me:password@host/v1"):
        refused = refusal(ChatClient, url, "m")
        assert (refused.key, "password" in str(refused)) == ("--base_url", False)
