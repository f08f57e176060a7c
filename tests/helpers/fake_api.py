"""A chat endpoint for tests that fails as the test wants, and otherwise answers from a function."""

import contextlib
import json
import socket
import struct
import threading
from collections import Counter

from scripted_server import Listening, send


def completion(text, finish="stop", **message):
    return {
        "model": "fake-1",
        "choices": [{"message": {"role": "assistant", "content": text} | message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10},
    }


class FakeApi:
    """Answers with `answer(body)`: text, a whole body, or (status, headers, body).

    `faults` are taken in order, one a request: drop, reset, cut, garbage, hang, or (status, headers, body). `requests`
    has the body of every request, `asked` counts the conversations that were answered.
    """

    def __init__(self, answer, faults=()):
        self.answer, self.faults = answer, list(faults)
        self.requests, self.headers, self.asked = [], [], Counter()
        self.at_once = self.most_at_once = 0
        self.lock, self.released = threading.Lock(), threading.Event()

    @contextlib.contextmanager
    def running(self):
        with Listening(self._respond, protocol="HTTP/1.1") as server:
            try:
                yield f"{server.url}/v1"
            finally:
                self.released.set()
                server.shutdown()

    def _respond(self, handler, data):
        body = json.loads(data)
        with self.lock:
            self.requests.append(body)
            self.headers.append(dict(handler.headers))
            fault = self.faults.pop(0) if self.faults else None
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            self._answer(handler, body, fault)
        finally:
            with self.lock:
                self.at_once -= 1

    def _answer(self, handler, body, fault):
        handler.close_connection = fault in ("drop", "reset", "hang", "cut") or handler.close_connection
        if fault == "reset":
            handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            handler.connection.close()
        if fault == "hang":
            self.released.wait(20)
        if fault in ("drop", "reset", "hang"):
            return
        status, headers, content = 200, {}, b"{"
        if isinstance(fault, tuple):
            status, headers, content = fault
        elif fault != "garbage":
            content = self.answer(body)
            if isinstance(content, tuple):
                status, headers, content = content
            if isinstance(content, str):
                content = completion(content)
            with self.lock:
                self.asked[json.dumps(body["messages"])] += fault is None
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        send(handler, status, data, headers, len(data) // 2 if fault == "cut" else None)
