"""Servers in threads of this process whose answers are given beforehand."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Listening(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, respond, protocol="HTTP/1.0"):
        class Handler(BaseHTTPRequestHandler):
            protocol_version = protocol

            def do_POST(self):
                respond(self, self.rfile.read(int(self.headers.get("Content-Length", 0))))

            do_GET = do_POST

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def handle_error(self, *_):
        pass


def send(handler, status, content, headers=(), size=None):
    """Sends an answer, of whose content only the first `size` bytes."""
    handler.send_response(status)
    for name, value in {
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        **dict(headers),
    }.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(content[:size])


class Scripted:
    """A server that gives each request the next of its answers: (status, body), seconds to wait, or bytes."""

    def __init__(self, *answers):
        self.answers, self.seen = list(answers), []
        self.server = Listening(self._respond)
        self.url = self.server.url

    def _respond(self, handler, data):
        self.seen.append((handler.path, json.loads(data or b"null")))
        answer = self.answers.pop(0)
        if isinstance(answer, bytes):  # raw bytes, then the connection closes
            handler.wfile.write(answer)
            return
        if isinstance(answer, float):
            time.sleep(answer)
            answer = (200, {"id": 1})
        status, body = answer
        send(handler, status, body if isinstance(body, bytes) else json.dumps(body).encode())
