"""How a long command ends at Ctrl-C or SIGTERM: at once, with one sentence for the user.

A run may be stopped at any moment, because its files are always complete. A separate thread reads the signal: the
main thread may be inside a compiled program for minutes. Raising an exception in it there, or running Python's
teardown while other threads compute, would crash the process.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

CLOSE_SECONDS = 10.0
"""Seconds that an open service or the display gets to close."""

_open: list[Callable[[], object]] = []


@contextlib.contextmanager
def closed_at_stop(close: Callable[[], object]) -> Iterator[None]:
    """Calls `close` if a signal ends the process inside this block."""
    _open.append(close)
    try:
        yield
    finally:
        _open.remove(close)


@contextlib.contextmanager
def ends_with(sentence: Callable[[], str]) -> Iterator[None]:
    """Inside the block, SIGINT and SIGTERM end the process with codes 130 and 143.

    `sentence` gives the text printed after "agentrl: stopped by SIGINT; "; it is called when the signal arrives.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread can set signal handlers
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: None) for number in signals}
    awoken = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    thread = threading.Thread(target=_wait, args=(read, sentence), daemon=True)
    thread.start()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(awoken)
        os.close(write)  # ends the thread
        thread.join()
        os.close(read)


def _wait(read: int, sentence: Callable[[], str]) -> None:
    number = os.read(read, 1)
    while number and number[0] not in (signal.SIGINT, signal.SIGTERM):
        number = os.read(read, 1)
    if not number:
        return
    closing = threading.Thread(target=_close, daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)
    end(f"stopped by {signal.Signals(number[0]).name}; {sentence()}", 128 + number[0])


def _close() -> None:
    for close in reversed(_open):
        with contextlib.suppress(Exception):
            close()


def end(sentence: str, code: int) -> None:
    """Prints a sentence to standard error and ends the process without Python's teardown."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.write(2, f"agentrl: {sentence}\n".encode())
    os._exit(code)
