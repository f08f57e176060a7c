"""`agentrl serve`: from the words of the command line to a server that runs."""

import secrets
import socket
from pathlib import Path

from agentrl_jax.cli.commands import Serve
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.services.catalog import get_service
from agentrl_jax.services.protocol import wire_of
from agentrl_jax.services.server.app import create_app
from agentrl_jax.services.server.limits import LOOPBACK, Limits
from agentrl_jax.services.server.run import is_loopback, serve

HANDLES = 2**30
"""The first handle of a server is drawn below this; all that follow fit 31 bits."""


def run(command: Serve) -> None:
    """Serves until a signal comes.

    Raises:
        UserError: an option is of no use, the environment is unknown or lacks something, or the port is taken.
    """
    for name in ("max_instances", "request_timeout", "max_body", "max_action", "max_connections", "workers"):
        if not getattr(command, name) > 0:
            raise UserError(f"--{name} is {getattr(command, name)}, expected a number above 0")
    for name in ("idle_timeout", "reclaim_after"):
        if not getattr(command, name) >= 0:
            raise UserError(f"--{name} is {getattr(command, name)}, expected 0 for never, or seconds")
    if not 0 <= command.port < 2**16:
        raise UserError(f"--port is {command.port}, expected a number from 0 to {2**16 - 1}")
    token = read_token(command.token_file)
    with refusals():
        service = get_service(command.env)
        service.make(False).close()  # what is missing is told now, not to the first client
    upstream = command.compat == "upstream"
    limits = Limits(
        instances=command.max_instances,
        idle_timeout=command.idle_timeout,
        seconds=command.request_timeout,
        body_bytes=command.max_body,
        action_chars=command.max_action,
        reclaim_after=command.reclaim_after,
        hosts=served_hosts(command.host, command.allowed_hosts),
        any_address=command.host in ("0.0.0.0", "::"),
        workers=command.workers,
        token=token,
        first_handle=0 if upstream else secrets.randbelow(HANDLES),
    )
    app = create_app(service, wire_of(service.name), limits, upstream=upstream)
    serve(
        app,
        host=command.host,
        port=command.port,
        token=token,
        connections=command.max_connections,
        announce=command.announce,
    )


def served_hosts(host: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Names that requests may give as Host: of loopback where that is listened on, the bound one, and those allowed.

    Raises:
        UserError: an allowed host is no bare name or address.
    """
    for name in allowed:
        if not name or any(letter in name for letter in "/*@, ") or name.count(":") == 1:
            raise UserError(f"--allowed_hosts holds {name!r}, expected names or addresses without port, e.g. gpu7.lan")
    every = host in ("0.0.0.0", "::")
    own = {host.lower(), *(LOOPBACK if every or is_loopback(host) else ()), *([socket.gethostname()] if every else ())}
    return tuple(sorted({*(name.lower() for name in own), *(name.lower().strip("[]") for name in allowed)}))


def read_token(file: str) -> str:
    """The token in a file; empty where none is named.

    Raises:
        UserError: the file cannot be read or holds no token.
    """
    if not file:
        return ""
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read ({error}); give a file that holds a token") from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(f"{file}: holds no token; expected one line of printable ASCII characters without blanks")
    return token
