"""A server whose answers are given beforehand."""

import http.server
import json
import threading
import time


class Scripted:
    """A server that gives each request the next of its answers: (status, body), seconds to wait, or bytes."""

    def __init__(self, *answers):
        self.answers, self.seen = list(answers), []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                length = int(self.headers.get("Content-Length", 0))
                outer.seen.append((self.path, json.loads(self.rfile.read(length) or b"null")))
                answer = outer.answers.pop(0)
                if isinstance(answer, bytes):  # raw bytes, then the connection closes
                    self.wfile.write(answer)
                    self.close_connection = True
                    return
                if isinstance(answer, float):
                    time.sleep(answer)
                    answer = (200, {"id": 1})
                status, body = answer
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"
