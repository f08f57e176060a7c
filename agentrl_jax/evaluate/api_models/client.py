"""Client of an OpenAI-compatible chat endpoint, which asks again where another attempt may go better."""

import dataclasses
import email.utils
import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from agentrl_jax.errors import MAX_FOREIGN, UserError, shortened
from agentrl_jax.evaluate.api_models.answers import (
    BadReply,
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

REFUSED_REQUESTS = 3
"""Requests refused as invalid (status 400 or 422) before any reply, after which the options must be wrong."""

_LATER, _NEVER = (408, 409, 425, 429), (501, 505)
"""Status codes below 500 that may change on a later attempt, and those above that do not."""

Message = Mapping[str, Any]
"""`role`, `content`, and `token_ids` of replies where they are sent back."""


class GivenUp(Exception):
    """No attempt has brought a reply; the message says what came last."""


class Refused(GivenUp):
    """The server takes no request with this conversation, but takes others."""


class _Later(Exception):
    """An attempt that failed, and how long the server asks to wait, in seconds."""

    def __init__(self, what: str, wait: float = 0.0):
        super().__init__(what)
        self.wait = wait


class ChatClient:
    """Asks one model. Thread-safe. `requests` counts attempts, `retried` those after a failed one.

    `replied` says whether the model has ever replied to the same options; who knows that it did in an earlier process
    sets it.
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
            key: sent as `Authorization: Bearer KEY`; empty for none. It appears in no message.
            options: further fields of every body, such as temperature and max_tokens; null leaves a field out, also one
                that would be sent otherwise.
            seconds: time of one attempt, with its whole answer. Of headers that come in pieces it limits each piece.
            retries: attempts after the first one.
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
        self._client = httpx.Client(
            headers=headers,
            timeout=seconds,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            trust_env=not is_loopback(httpx.URL(base_url).host),  # a proxy does not lead to this machine
        )
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._answered = self.replied = False
        self._refused = 0
        self.requests = self.retried = 0

    def close(self) -> None:
        """Ends the connections; those who wait for another attempt give up."""
        self._stopped.set()
        self._client.close()

    def ask(self, messages: Sequence[Message], *, seed: int | None = None) -> Reply:
        """The reply to a conversation.

        Raises:
            GivenUp: all attempts have failed, or the client was closed.
            Refused: the server refuses this conversation.
            UserError: the server refuses every request for good: wrong key, unknown model, no quota, invalid body.
        """
        fields = {"messages": list(messages), "seed": seed} | self._options
        body = json.dumps({name: value for name, value in fields.items() if value is not None}, allow_nan=False)
        attempt, pause = 0, FIRST_PAUSE
        while True:
            try:
                return self._once(body.encode())
            except _Later as failure:
                attempt += 1
                # So that requests that failed together do not come back together.
                wait = failure.wait + pause * random.uniform(0.5, 1.0)
                if attempt > self._retries or failure.wait > LONGEST_WAIT:
                    asked = f", which asks to wait {failure.wait:.0f} s" if failure.wait > LONGEST_WAIT else ""
                    raise GivenUp(
                        shortened(f"{failure}{asked}; given up after {attempt} attempts", MAX_FOREIGN)
                    ) from failure
            if self._stopped.wait(wait):
                raise GivenUp("the evaluation ends")
            pause = min(2 * pause, LONGEST_PAUSE)
            with self._lock:
                self.retried += 1

    def _once(self, body: bytes) -> Reply:
        with self._lock:
            self.requests += 1
        try:
            status, headers, content = self._send(body)
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
        except RuntimeError as error:  # httpx refuses to send on a closed client
            if not self._stopped.is_set():
                raise
            raise GivenUp("the evaluation ends") from error
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
                raise _Later(f"{self._url}: {self._without_key(error)}") from error
            self.replied = True
            return reply
        return self._of_error(status, headers, answer)

    def _of_error(self, status: int, headers: Mapping[str, str], answer: Any) -> Reply:
        said = shortened(self._without_key(error_of(answer).get("message") or answer), 300)
        what = f"{self._url}: status {status}: {said}"
        later = status in _LATER or (status >= 500 and status not in _NEVER)
        if later and not out_of_quota(answer) and not invalid_field(status, answer):
            raise _Later(what, retry_after(headers))
        if (reply := reply_of_error(status, answer)) is not None:
            return dataclasses.replace(reply, refusal=self._without_key(reply.refusal))
        advice = {
            401: "give the key in the environment variable that --key_variable names",
            404: "check the name of the model, and whether --base_url ends with /v1",
        }.get(status, "correct it; what has been answered is kept")
        if 300 <= status < 400:
            where = shortened(self._without_key(headers.get("location", "")), 200) or "an address that it does not name"
            advice = f"it redirects to {where}; give that server as --base_url"
        if "return_token_ids" in said:
            advice = "leave out --token_ids, which this server does not know"
        if status in (400, 422):
            with self._lock:
                self._refused += 1
                of_this_one = self.replied or self._refused < REFUSED_REQUESTS
            if of_this_one:  # one conversation that is refused must not keep the others from being played
                raise Refused(f"{what}; {advice}")
        raise UserError(f"{what}; {advice}", key=self._url, value=status)

    def _send(self, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of an answer, in time."""
        end = time.monotonic() + self._seconds
        content = bytearray()
        headers = {"Content-Type": "application/json"}
        with self._client.stream("POST", self._url, content=body, headers=headers) as response:
            for part in response.iter_bytes():
                content += part
                if len(content) > MAX_ANSWER_BYTES:
                    raise UserError.at(
                        self._url, f"the answer is longer than {MAX_ANSWER_BYTES} bytes; lower --max_tokens"
                    )
                if time.monotonic() > end:  # httpx limits only the time of one read
                    raise httpx.ReadTimeout(f"no whole answer within {self._seconds:g} s")
        return response.status_code, response.headers, bytes(content)

    def _without_key(self, text: object) -> str:
        """What a server says about an error, in which it may repeat the key."""
        return str(text).replace(self._key, "***") if self._key else str(text)


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
