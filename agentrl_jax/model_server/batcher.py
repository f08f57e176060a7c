"""Collects the requests that wait and has them sampled together, in one thread beside the server's."""

import collections
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from agentrl_jax.model_server.sampler import Sampled, SampleRequest

_log = logging.getLogger(__name__)

Sample = Callable[[Sequence[SampleRequest]], list[Sampled]]


class QueueFull(Exception):
    """Too many requests wait; `seconds` is a guess of when there is room again."""

    def __init__(self, waiting: int, seconds: int):
        super().__init__(f"{waiting} responses wait to be sampled; ask again in {seconds} s")
        self.seconds = seconds


class Batcher:
    """A queue of requests and the thread that empties it, up to `max_rows` requests at a time, oldest first."""

    def __init__(self, sample: Sample, *, max_rows: int, max_waiting: int):
        """Starts the thread."""
        self._sample, self._max_rows, self.max_waiting = sample, max_rows, max_waiting
        self._waiting: collections.deque[tuple[SampleRequest, Future[Sampled]]] = collections.deque()
        self._changed = threading.Condition()
        self._closed = False
        self._seconds = 1.0
        self.dispatches = self.rows = 0
        self._thread = threading.Thread(target=self._work, daemon=True, name="sampler")
        self._thread.start()

    def __len__(self) -> int:
        """Number of requests that wait."""
        return sum(not future.cancelled() for _, future in tuple(self._waiting))

    def submit(self, requests: Sequence[SampleRequest]) -> list[Future[Sampled]]:
        """Adds requests to the queue, all or none. A future that is canceled while it waits is not sampled.

        Raises:
            QueueFull: more than `max_waiting` requests would wait.
        """
        with self._changed:
            if len(self) + len(requests) > self.max_waiting:
                batches = math.ceil(len(self) / self._max_rows)
                raise QueueFull(len(self), max(1, math.ceil(batches * self._seconds)))
            futures: list[Future[Sampled]] = [Future() for _ in requests]
            self._waiting += zip(requests, futures)
            self._changed.notify()
        return futures

    def close(self, seconds: float) -> None:
        """Cancels what waits, and gives a dispatch that runs some time to end."""
        with self._changed:
            self._closed = True
            for _, future in self._waiting:
                future.cancel()
            self._waiting.clear()
            self._changed.notify()
        self._thread.join(seconds)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                batch: list[tuple[SampleRequest, Future[Sampled]]] = []
                while self._waiting and len(batch) < self._max_rows:
                    request, future = self._waiting.popleft()
                    if future.set_running_or_notify_cancel():
                        batch.append((request, future))
            if batch:
                self._dispatch(batch)

    def _dispatch(self, batch: Sequence[tuple[SampleRequest, Future[Sampled]]]) -> None:
        began = time.monotonic()
        try:
            found = self._sample([request for request, _ in batch])
        except Exception as error:
            _log.exception("%d responses could not be sampled", len(batch))
            for _, future in batch:
                future.set_exception(error)
            return
        self._seconds = time.monotonic() - began
        self.dispatches, self.rows = self.dispatches + 1, self.rows + len(batch)
        for (_, future), sampled in zip(batch, found, strict=True):
            future.set_result(sampled)
