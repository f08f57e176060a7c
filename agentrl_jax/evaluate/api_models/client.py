"""Client of an OpenAI-compatible chat endpoint, which asks again where another attempt may go better."""

import asyncio
import concurrent.futures
import dataclasses
import email.utils
import json
import random
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import httpx

from agentrl_jax.errors import MAX_FOREIGN, UserError, shortened
from agentrl_jax.evaluate.api_models.answers import (
    BadReply,
    NoReply,
    Reply,
    error_of,
    invalid_field,
    out_of_quota,
    read_reply,
    reply_of_error,
)
from agentrl_jax.services.server.access import is_loopback
from agentrl_jax.strict_json import parse

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds between two attempts: the first pause, which doubles each time, and the longest."""

LONGEST_WAIT = 600.0
"""Longest time in seconds that a server may ask to wait (`Retry-After`); beyond it the request is given up."""

UNREACHED_ATTEMPTS = 3
"""Attempts to connect to a server that has never answered."""

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Longest answer that is read, in bytes."""

REFUSED_RETRIES = 2
"""Most further attempts of a request that is refused for no known reason: few refusals change."""

SECRET = 8
"""Length from which a key is hidden in replies: local servers are given keys such as `x`, which are parts of words."""

NO_TEXT = "(no reply)"
"""What a server is shown in place of an earlier reply without text: several refuse empty messages of the assistant."""

_LATER, _NEVER = (408, 409, 425, 429), (501, 505)
"""Status codes below 500 that may change on a later attempt, and those above that do not."""
_FOR_ALL = (401, 402, 404, 405)
"""Status codes below 500 that are not of one conversation: the key, the account or the address is wrong."""

Message = Mapping[str, Any]
"""`role`, `content`, and `token_ids` of replies where they are sent back."""

_Answer = tuple[int, Mapping[str, str], bytes]
"""Status, headers and body."""


class GivenUp(Exception):
    """No attempt has brought a reply; the message says what came last."""


class Refused(GivenUp):
    """The server gives no reply to this conversation, and its reason is not known to be one of the server or of all."""


class _Later(Exception):
    """An attempt that failed, how long the server asks to wait, in seconds, and whether it has refused the request."""

    def __init__(self, what: str, wait: float = 0.0, *, refused: bool = False):
        super().__init__(what)
        self.wait, self.refused = wait, refused


class ChatClient:
    """Asks one model. Thread-safe. `requests` counts attempts, `retried` those after a failed one.

    `replied` says whether the model has ever replied; who knows that it did in an earlier process sets it.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        key: str = "",
        options: Mapping[str, Any] | None = None,
        seconds: float = 120.0,
        retries: int = 8,
        connections: int = 16,
    ):
        """Sends no request yet.

        Args:
            base_url: address before `/chat/completions`, for example http://127.0.0.1:8001/v1.
            model: name of the model.
            key: sent as `Authorization: Bearer KEY`; empty for none. It appears in no message, and in no reply if it is
                as long as `SECRET`.
            options: further fields of every body, such as temperature and max_tokens; null leaves a field out, also one
                that would be sent otherwise.
            seconds: time of one attempt, from the connection to the end of the answer.
            retries: attempts after the first one, see also `REFUSED_RETRIES`.
            connections: maximum number of requests at once.

        Raises:
            UserError: the address is none, or holds a password.
        """
        self._url = f"{_checked(base_url)}/chat/completions"
        self._options = {"model": model} | dict(options or {})
        self._key, self._seconds, self._retries = key, seconds, retries
        headers = {"User-Agent": "agentrl-jax", "Accept": "application/json"}
        # Uncompressed bodies only: a compressed one can be far longer than the bytes counted.
        headers |= {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {key}"} if key else {})
        # Of asyncio, because a blocking client cannot be ended, nor bounds headers that come byte by byte.
        self._client = httpx.AsyncClient(
            headers=headers,
            timeout=None,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            trust_env=not is_loopback(httpx.URL(base_url).host),  # a proxy does not lead to this machine
        )
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answered = self.replied = False
        self.requests = self.retried = 0

    def close(self) -> None:
        """Ends the connections; those who wait for an answer or for another attempt give up."""
        with self._lock:
            self._stopped.set()
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._end(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def ask(self, messages: Sequence[Message], *, seed: int | None = None) -> Reply:
        """The reply to a conversation, in which earlier replies without text are sent as `NO_TEXT`.

        Raises:
            GivenUp: all attempts have failed, or the client was closed.
            Refused: the server refuses this conversation.
            UserError: the server refuses every request for good: wrong key, unknown model, no quota.
        """
        fields = {"messages": [_visible(message) for message in messages], "seed": seed} | self._options
        body = json.dumps({name: value for name, value in fields.items() if value is not None}, allow_nan=False)
        attempt, pause = 0, FIRST_PAUSE
        while True:
            try:
                return self._once(body.encode())
            except _Later as failure:
                attempt += 1
                # So that requests that failed together do not come back together.
                wait = failure.wait + pause * random.uniform(0.5, 1.0)
                most = min(self._retries, REFUSED_RETRIES) if failure.refused else self._retries
                if attempt > most or failure.wait > LONGEST_WAIT:
                    asked = f", which asks to wait {failure.wait:.0f} s" if failure.wait > LONGEST_WAIT else ""
                    what = shortened(f"{failure}{asked}; given up after {attempt} attempts", MAX_FOREIGN)
                    raise (Refused if failure.refused else GivenUp)(what) from failure
            if self._stopped.wait(wait):
                raise GivenUp("the evaluation ends")
            pause = min(2 * pause, LONGEST_PAUSE)
            with self._lock:
                self.retried += 1

    def _once(self, body: bytes) -> Reply:
        with self._lock:
            self.requests += 1
        try:
            status, headers, content = self._wait_for(self._fetch(body))
        except httpx.ConnectError as error:
            with self._lock:
                unreached = not self._answered and self.requests >= UNREACHED_ATTEMPTS
            if unreached:
                raise UserError.at(
                    self._url, f"cannot be reached ({error}); start it, or give another --base_url"
                ) from error
            raise _Later(f"{self._url}: {error}") from error
        except (httpx.TransportError, httpx.DecodingError) as error:
            raise _Later(f"{self._url}: {type(error).__name__}: {error}") from error
        self._answered = True
        try:
            answer = parse(content, "the answer", advice="")
        except ValueError as error:
            text = content.decode("utf-8", "replace")
            if status == 200:
                shown = shortened(self._without_key(text), 200) or "nothing"
                raise _Later(f"{self._url}: {error}, but {shown}") from error
            answer = {"error": text}
        if status == 200 and isinstance(answer, dict) and answer.get("error"):
            # OpenRouter answers so if a provider fails after it was asked.
            code = error_of(answer).get("code")
            status = code if type(code) is int else 502
        if status == 200:
            try:
                reply = read_reply(answer)
            except BadReply as error:
                what = f"{self._url}: {self._without_key(error)}"
                raise _Later(what, refused=isinstance(error, NoReply)) from error
            self.replied = True
            return self._redacted(reply)
        return self._of_error(status, headers, answer)

    def _of_error(self, status: int, headers: Mapping[str, str], answer: Any) -> Reply:
        # The key goes first: a text that is cut afterwards could hold a part of it.
        error = {name: self._without_key(x) if isinstance(x, str) else x for name, x in error_of(answer).items()}
        said = shortened(error.get("message") or self._without_key(answer), 300)
        what, answer = f"{self._url}: status {status}: {said}", {"error": error}
        if (reply := reply_of_error(status, answer)) is not None:
            return reply
        of_server = status >= 500 and status not in _NEVER and not invalid_field(status, answer)
        if (status in _LATER or of_server) and not out_of_quota(answer):
            raise _Later(what, retry_after(headers))
        advice = {
            401: "give the key in the environment variable that --key_variable names",
            404: "check the name of the model, and whether --base_url ends with /v1",
        }.get(status, "correct it; what has been answered is kept")
        if 300 <= status < 400:
            where = shortened(self._without_key(headers.get("location", "")), 200) or "an address that it does not name"
            advice = f"it redirects to {where}; give that server as --base_url"
        if "return_token_ids" in said:
            advice = "leave out --token_ids, which this server does not know"
        if status < 400 or status in (*_FOR_ALL, *_NEVER) or out_of_quota(answer):
            raise UserError(f"{what}; {advice}", key=self._url, value=status)
        # One conversation that is refused must not keep the others from being played.
        raise _Later(f"{what}; {advice}", refused=True)

    def _wait_for(self, answer: Coroutine[Any, Any, _Answer]) -> _Answer:
        """What a coroutine returns, which runs in the client's own thread; `GivenUp` if the client is closed before."""
        with self._lock:
            if self._stopped.is_set():
                answer.close()
                raise GivenUp("the evaluation ends")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="chat-client")
                self._thread.start()
            future = asyncio.run_coroutine_threadsafe(answer, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            raise GivenUp("the evaluation ends") from error

    async def _fetch(self, body: bytes) -> _Answer:
        content = bytearray()
        headers = {"Content-Type": "application/json"}
        try:
            async with (
                asyncio.timeout(self._seconds),
                self._client.stream("POST", self._url, content=body, headers=headers) as response,
            ):
                async for part in response.aiter_bytes():
                    content += part
                    if len(content) > MAX_ANSWER_BYTES:
                        raise UserError.at(
                            self._url, f"the answer is longer than {MAX_ANSWER_BYTES} bytes; lower --max_tokens"
                        )
        except TimeoutError as error:
            raise httpx.ReadTimeout(f"no whole answer within {self._seconds:g} s") from error
        return response.status_code, response.headers, bytes(content)

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.aclose()

    def _without_key(self, text: object) -> str:
        """What a server says about an error, in which it may repeat the key."""
        return str(text).replace(self._key, "***") if self._key else str(text)

    def _redacted(self, reply: Reply) -> Reply:
        """The reply without the key; if it was there, also without the tokens, which would spell it."""
        said = {name: getattr(reply, name) for name in ("text", "reasoning", "refusal", "model")}
        tokens = "".join(token for token, _ in reply.logprobs or ())
        if len(self._key) < SECRET or not any(self._key in text for text in (*said.values(), tokens)):
            return reply
        hidden: dict[str, Any] = {name: self._without_key(text) for name, text in said.items()}
        return dataclasses.replace(reply, **hidden, prompt_token_ids=None, token_ids=None, logprobs=None)


def _visible(message: Message) -> Message:
    empty = message["role"] == "assistant" and not message["content"].strip()
    return {**message, "content": NO_TEXT} if empty else message


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds that a server asks to wait: `Retry-After` as a number or a date; 0 if there is none or it is over."""
    value = headers.get("retry-after", "").strip()
    try:
        return max(0.0, min(float(value), 1e9))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0


def _checked(base_url: str) -> str:
    """The address without a slash at its end."""
    try:
        url = httpx.URL(base_url)
    except (httpx.InvalidURL, ValueError) as error:
        raise UserError(
            f"--base_url is no address ({error}); give one such as http://127.0.0.1:8001/v1", key="--base_url"
        ) from error
    if url.userinfo or url.query or url.fragment:
        raise UserError(
            "--base_url holds a user, a query or a fragment; give only scheme, host, port and path, and a key "
            "in an environment variable (--key_variable)",
            key="--base_url",
        )
    if url.scheme not in ("http", "https") or not url.host:
        raise UserError.of("--base_url", base_url, "expected an address such as http://127.0.0.1:8001/v1")
    return str(url).rstrip("/")
