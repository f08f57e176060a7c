"""Access to a server: host names and tokens."""

import contextlib
import ipaddress
import socket
from pathlib import Path

from agentrl_jax.errors import UserError
from agentrl_jax.services.server.limits import LOOPBACK


def parse_address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address in a host name, if it is one."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(name)
    return None


def is_loopback(host: str) -> bool:
    """Whether an address or name is a loopback one."""
    address = parse_address(host)
    return host == "localhost" if address is None else address.is_loopback


def served_hosts(host: str, allowed: tuple[str, ...]) -> tuple[str, ...]:
    """Allowed values of the Host header: loopback names if listening there, the bound address, and allowed names.

    Allowed names that are not bare names or addresses, and an empty `host`, are a `UserError`.
    """
    if not host:
        raise UserError("--host is empty, expected an address to listen on, e.g. 127.0.0.1", key="--host", value="")
    for name in allowed:
        if not name or any(letter in name for letter in "/*@, ") or name.count(":") == 1:
            raise UserError(
                f"--allowed_hosts holds {name!r}, expected names or addresses without port, e.g. gpu7.lan",
                key="--allowed_hosts",
                value=name,
            )
    every = host in ("0.0.0.0", "::")
    own = {host, *(LOOPBACK if every or is_loopback(host) else ()), *([socket.gethostname()] if every else ())}
    return tuple(sorted({*(name.lower() for name in own), *(name.lower().strip("[]") for name in allowed)}))


def read_token(file: str) -> str:
    """The token in a file; empty if no file is given. `UserError` if the file cannot be read or holds no token."""
    if not file:
        return ""
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError.at(file, f"cannot be read ({error}); give a file that holds a token") from error
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError.at(file, "holds no token; expected one line of printable ASCII characters without blanks")
    return token
