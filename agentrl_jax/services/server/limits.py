"""Limits of a server."""

import dataclasses

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Loopback names and addresses of this machine."""

ITEM_BOUND = 2**63
"""Handles and items on the routes are integers from -ITEM_BOUND to ITEM_BOUND - 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of a server.

    Attributes:
        instances: most instances open at once.
        idle_timeout: seconds without a request after which an instance is closed; 0 for never.
        reclaim_after: seconds without a request after which an unfinished instance may be closed to make room for a new
            one; 0 for never. Finished ones may be closed for this at any time.
        seconds: time that a request may take; then its instance is abandoned.
        arrival_seconds: time that the body of a request may take to arrive.
        workers: most requests processed at once.
        token: bearer token that requests need; empty for none.
        hosts: allowed values of the Host header, in lower case, IPv6 addresses without brackets.
        any_address: the Host header may also be any IP address. Safe if the server listens on all of them: a page that
            rebinds a DNS name sends that name.
        first_handle: handle of the first instance. A restarted server should not reuse the previous server's handles,
            which clients may still hold.
    """

    instances: int = 256
    idle_timeout: float = 3600.0
    reclaim_after: float = 300.0
    seconds: float = 300.0
    arrival_seconds: float = 20.0
    body_bytes: int = 1024 * 1024
    action_chars: int = 65536
    workers: int = 64
    token: str = ""
    hosts: tuple[str, ...] = LOOPBACK
    any_address: bool = False
    first_handle: int = 0
