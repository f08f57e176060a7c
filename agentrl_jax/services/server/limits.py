"""What a server allows."""

import dataclasses

LOOPBACK = ("127.0.0.1", "::1", "localhost")
"""Names of this machine that only this machine resolves to itself."""

MOST_ITEM = 2**63
"""Handles and items on the routes are integers from -MOST_ITEM to MOST_ITEM - 1."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server allows.

    Attributes:
        instances: open at once.
        idle_timeout: seconds without a request after which an instance is closed; 0 for never.
        reclaim_after: seconds without a request after which an unfinished instance may be closed for a new one when all
            places are taken; 0 for never. Finished ones may be closed for a new one at any time.
        seconds: that a request may take; its instance is given up then.
        arrival_seconds: that the body of a request may take to arrive.
        body_bytes: of a request.
        action_chars: of an action.
        workers: requests that are worked on at once.
        token: that requests have to bear; empty for none.
        hosts: names that the header Host may give, in lower case, IPv6 addresses without brackets.
        any_address: Host may also give any IP address. Safe where the server listens on all of them: a page that
            rebinds a DNS name sends that name.
        first_handle: of the first instance. A server that is started anew should not give the handles of the one
            before, which its clients still have.
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


DEFAULTS = Limits()
