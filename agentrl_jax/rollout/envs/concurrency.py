"""Runs slow functions concurrently, with a deadline."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any


def run_all(jobs: Sequence[Callable[[], Any]], deadline: float, workers: int) -> list[Any]:
    """Runs functions concurrently in at most `workers` threads, for at most `deadline` seconds.

    Returns for each function its result, the exception that it raised, or a `TimeoutError`. Functions that have not
    begun by then never begin.
    """
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    finished: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    over = threading.Event()
    for index in range(len(jobs)):
        waiting.put(index)

    def work() -> None:
        while not over.is_set():
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                finished.put((index, jobs[index]()))
            except BaseException as error:
                finished.put((index, error))

    end = time.monotonic() + deadline
    # Daemon threads: Python joins the threads of an executor at exit, so one that hangs would block it.
    for _ in range(min(workers, len(jobs))):
        threading.Thread(target=work, daemon=True, name="host-environment").start()
    results: dict[int, Any] = {}
    while len(results) < len(jobs):
        try:
            index, result = finished.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        results[index] = result
    over.set()
    late = TimeoutError(f"no answer within {deadline:g} seconds")
    return [results.get(index, late) for index in range(len(jobs))]
