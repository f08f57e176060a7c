"""`agentrl serve`: from the words of the command line to a server that runs."""

import secrets
from pathlib import Path

from agentrl_jax.commands import Serve
from agentrl_jax.errors import UserError, refusals
from agentrl_jax.services.catalogue import get_service
from agentrl_jax.services.protocol import wire_of
from agentrl_jax.services.server.app import Limits, create_app
from agentrl_jax.services.server.run import serve

HANDLES = 2**30
"""The first handle of a server is drawn below this; all that follow fit 31 bits."""


def run(command: Serve) -> None:
    """Serves until a signal comes.

    Raises:
        UserError: an option is of no use, the environment is unknown or lacks something, or the port is taken.
    """
    for name in ("max_instances", "request_timeout", "max_body", "workers"):
        if not getattr(command, name) > 0:
            raise UserError(f"--{name} is {getattr(command, name)}, expected a number above 0")
    if command.idle_timeout < 0:
        raise UserError(f"--idle_timeout is {command.idle_timeout}, expected 0 for never, or seconds")
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
        workers=command.workers,
        token=token,
        first_handle=0 if upstream else secrets.randbelow(HANDLES),
    )
    app = create_app(service, wire_of(service.name), limits, upstream=upstream)
    serve(app, host=command.host, port=command.port, token=token, announce=command.announce)


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
