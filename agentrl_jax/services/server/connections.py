"""Keeps idle connections from blocking active ones."""

import asyncio
import time

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0
"""Seconds that the head of a request may take to arrive, counted from the connection or its first byte."""


def bounded_protocol(most: int, head_seconds: float = HEAD_SECONDS) -> type[H11Protocol]:
    """uvicorn's HTTP protocol with at most `most` open connections, closed if the head of a request comes too late.

    For one connection too many, the one that was idle longest is closed, preferably one that never sent a request; if
    all are active, the new one is closed.
    """

    class Bounded(H11Protocol):
        _timer: asyncio.TimerHandle | None = None
        _since = 0.0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._since = time.monotonic()
            self._await_head()
            if len(self.connections) > most:
                others = (each for each in self.connections if isinstance(each, Bounded) and each is not self)
                idle = [each for each in others if each.cycle is None or each.cycle.response_complete]
                min(idle, key=lambda each: (each.cycle is not None, each._since), default=self).drop()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._end_timer()
            elif self._timer is None and not self.transport.is_closing():
                self._await_head()

        def on_response_complete(self) -> None:
            self._since = time.monotonic()
            super().on_response_complete()
            # A part of the next head may have come before this answer was complete.
            if self._timer is None and self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
                self._await_head()

        def drop(self) -> None:
            """Closes the connection at once."""
            self.connections.discard(self)
            self._end_timer()
            self._unset_keepalive_if_required()
            self.transport.abort()

        def _await_head(self) -> None:
            self._timer = self.loop.call_later(head_seconds, self.drop)

        def _end_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return Bounded
