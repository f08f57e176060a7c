"""A server process: sockets, signals and logs around the application."""

import datetime
import json
import logging
import os
import resource
import socket
import sys
import threading
import traceback
from typing import Any

import uvicorn
from fastapi import FastAPI

from agentrl_jax.errors import UserError
from agentrl_jax.services.server.access import is_loopback
from agentrl_jax.services.server.connections import bounded_protocol
from agentrl_jax.services.texts import cut

GRACE_SECONDS = 10
"""Seconds that running requests get after a signal."""

JOIN_SECONDS = 5.0
"""Seconds that threads get after the server has ended."""

MAX_TRACEBACK_CHARS = 4000
"""Characters of a traceback that are logged, counted from its end."""

KEPT_SECONDS = 75
"""Seconds that an idle connection is kept; longer than clients keep theirs."""


def serve(app: FastAPI, *, host: str, port: int, token: str, connections: int, announce: bool = False) -> None:
    """Serves until a signal arrives, then lets running requests finish and closes all instances.

    Port 0 is any free one. Without the `token` that the application requires, an address reachable by others causes a
    warning. At most `connections` are open at once, and half of the files that the process may open. `announce` is for
    a parent process: the address is printed to standard output as a line of JSON, and the server ends when standard
    input closes. Raises `UserError` if the address cannot be bound.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    listener = _listener(host, port)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = connections if files == resource.RLIM_INFINITY else min(connections, files // 2)
    address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    log = logging.getLogger(__name__)
    if not token and not is_loopback(host):
        log.warning(f"{address} can be reached from other machines and asks for no token; give --token-file")
    if announce:
        print(json.dumps({"url": address}), flush=True)
    log.info(f"serving at {address}")
    config = uvicorn.Config(
        app,
        http=bounded_protocol(most),
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_keep_alive=KEPT_SECONDS,
        ws="none",
    )
    server = uvicorn.Server(config)
    if announce:
        threading.Thread(target=_end_with_input, args=(server,), daemon=True).start()
    server.run(sockets=[listener])
    # A request that never returns would keep Python from exiting.
    busy = [t for t in threading.enumerate() if t is not threading.current_thread() and not t.daemon]
    for thread in busy:
        thread.join(JOIN_SECONDS / len(busy))
    if any(thread.is_alive() for thread in busy):
        logging.shutdown()
        os._exit(0)


def _end_with_input(server: uvicorn.Server) -> None:
    while sys.stdin.buffer.read(1):
        pass
    server.should_exit = True


def _listener(host: str, port: int) -> socket.socket:
    ipv6 = ":" in host
    try:
        return socket.create_server(
            (host, port),
            family=socket.AF_INET6 if ipv6 else socket.AF_INET,
            backlog=2048,
            dualstack_ipv6=ipv6 and socket.has_dualstack_ipv6(),
        )
    except (OSError, OverflowError) as error:
        raise UserError(
            f"cannot listen on {host}:{port} ({error}); give another --host or --port", key="--port", value=port
        ) from error


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        fields: dict[str, Any] = {
            "time": datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": cut(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            # The frames say where, the last line says what; either may be long.
            what = traceback.format_exception_only(record.exc_info[1])[-1].strip()
            frames = "".join(traceback.format_tb(record.exc_info[2]))
            fields["error"] = f"{cut(what)}\n{frames[-MAX_TRACEBACK_CHARS:]}"
        return json.dumps(fields)
