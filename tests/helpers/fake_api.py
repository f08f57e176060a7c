"""A chat endpoint for tests that fails as the test wants, and otherwise answers from a function."""

import contextlib
import json
import socket
import struct
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def completion(text, finish="stop", **message):
    """The body of an answer."""
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
        """Serves inside the block, and yields the address."""
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with api.lock:
                    api.requests.append(body)
                    api.headers.append(dict(self.headers))
                    fault = api.faults.pop(0) if api.faults else None
                    api.at_once += 1
                    api.most_at_once = max(api.most_at_once, api.at_once)
                try:
                    self.respond(body, fault)
                finally:
                    with api.lock:
                        api.at_once -= 1

            def respond(self, body, fault):
                self.close_connection = fault in ("drop", "reset", "hang", "cut") or self.close_connection
                if fault == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                if fault == "hang":
                    api.released.wait(20)
                if fault in ("drop", "reset", "hang"):
                    return
                status, headers, content = 200, {}, b"{"
                if isinstance(fault, tuple):
                    status, headers, content = fault
                elif fault != "garbage":
                    content = api.answer(body)
                    if isinstance(content, tuple):
                        status, headers, content = content
                    if isinstance(content, str):
                        content = completion(content)
                    with api.lock:
                        api.asked[json.dumps(body["messages"])] += fault is None
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) // 2] if fault == "cut" else data)

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.handle_error = lambda *_: None
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            self.released.set()
            server.shutdown()
            thread.join(20)
            server.server_close()
