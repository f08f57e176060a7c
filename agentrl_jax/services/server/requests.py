"""Checks from its head and body whether the server accepts a request."""

import ipaddress
import json

from starlette.datastructures import Headers

from agentrl_jax.services.server.limits import Limits
from agentrl_jax.services.texts import cut
from agentrl_jax.strict_json import parse


def refuse_head(headers: Headers, scheme: str, limits: Limits) -> tuple[int, str] | None:
    """Status and message for a request with a wrong Host or from a foreign web page; None for a valid one.

    A web page can make a browser send requests to this machine. Under a DNS name that the page controls (DNS
    rebinding), they have that name as Host; otherwise a browser adds the page's Origin to every POST. AgentGym's
    clients send no Origin.
    """
    given = headers.getlist("host")
    if len(given) != 1 or not _is_allowed(given[0], limits):
        shown = cut(", ".join(given), 100) or "no name"
        return 400, f"the header Host gives {shown!r}, which is not served; start the server with --allowed_hosts NAME"
    origin = headers.get("origin")
    if origin is not None and origin.lower() != f"{scheme}://{given[0]}".lower():
        return 403, f"requests of web pages elsewhere are not served (Origin: {cut(origin, 100)})"
    return None


def refuse_body(headers: Headers, body: bytes) -> tuple[int, str] | None:
    """Status and message for a body that is not strict JSON, before anything is played; None if valid or empty.

    Strict: declared as JSON, no repeated key, finite numbers, whole Unicode characters, integers that Python reads.
    """
    if not body:
        return None
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        return 415, f"the body is declared as {cut(kind, 100) or 'nothing'}; send Content-Type: application/json"
    try:
        json.dumps(parse(body, "the body"), allow_nan=False, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return 422, "the body holds half of a surrogate pair, which is no character"
    except (ValueError, RecursionError) as error:
        return 422, f"the body is no strict JSON: {cut(str(error.__cause__ or error), 200)}"
    return None


def _is_allowed(given: str, limits: Limits) -> bool:
    """Whether a Host, with or without a port, is allowed."""
    name, colon, port = given.lower().rpartition(":")
    if not colon or given.endswith("]"):
        name, port = given.lower(), "0"
    if not (port.isascii() and port.isdigit()):
        return False
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    elif ":" in name:
        return False
    return name in limits.hosts or (limits.any_address and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
