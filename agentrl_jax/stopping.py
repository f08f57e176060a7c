"""How a long command ends at Ctrl-C, SIGTERM or SIGHUP: with one sentence for the user.

A run may be stopped at any moment, because its files are always complete. A separate thread reads the signal: the
main thread may be inside a compiled program for minutes. Raising an exception in it there, or running Python's
teardown while other threads compute, would crash the process.

SIGTERM is how schedulers announce that they take a machine away, SIGHUP that the terminal has been closed. Where the
command can save its work soon, it asks with `deferring` for the time to do so.

A library that calls `abort` ends the process from any of its threads; `aborts_end_with` has the last word then.
"""

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator

CLOSE_SECONDS = 10.0
"""Seconds that an open service or the display gets to close."""


class Stopped(Exception):
    """The command has saved its work and ends, because it got a signal, see `deferring`."""

    def __init__(self, number: int = signal.SIGTERM):
        super().__init__(f"the run has saved its state and ends, because of {signal.Signals(number).name}")
        self.number = number


_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SOON = "stops after this iteration and saves its state; interrupt it again to stop at once"

_open: list[Callable[[], object]] = []
_deferring: list["_Request"] = []
_ending = threading.Lock()


class _Request:
    """The first signal that a command was asked to end with; 0 before."""

    def __init__(self) -> None:
        self.number = 0


@contextlib.contextmanager
def closed_at_stop(close: Callable[[], object]) -> Iterator[None]:
    """Calls `close` if a signal ends the process inside this block."""
    _open.append(close)
    try:
        yield
    finally:
        _open.remove(close)


@contextlib.contextmanager
def deferring() -> Iterator[Callable[[], int]]:
    """Inside the block a first signal only makes the yielded function return its number, not 0; a second one ends all.

    Outside of `ends_with`, as in a notebook, this is so of a first interrupt; a second one is a `KeyboardInterrupt`.
    """
    request = _Request()
    _deferring.append(request)
    by_python = threading.current_thread() is threading.main_thread() and (
        signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )

    def ask(number: int, frame: object) -> None:
        _ask(request, number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        if by_python:
            signal.signal(signal.SIGINT, ask)
        yield lambda: request.number
    finally:
        if by_python:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _deferring.remove(request)


def _ask(request: _Request, number: int) -> None:
    request.number = number
    if number == signal.SIGINT:  # there is someone who reads it
        with contextlib.suppress(OSError):
            print(f"\nthe run {_SOON}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Inside the block, which has nothing to save, the first signal ends the process in spite of `deferring`."""
    ended = _Request()
    ended.number = signal.SIGTERM
    _deferring.append(ended)
    try:
        yield
    finally:
        _deferring.remove(ended)


@contextlib.contextmanager
def ends_with(sentence: Callable[[], str]) -> Iterator[None]:
    """Inside the block, SIGINT, SIGTERM and SIGHUP end the process with codes 130, 143 and 129.

    A SIGHUP that the process ignores, as under nohup, stays ignored.

    `sentence` gives the text printed after "agentrl: stopped by SIGINT; "; it is called when the signal arrives.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread can set signal handlers
        yield
        return
    read, write = os.pipe()
    os.set_blocking(write, False)
    under_nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signals = [number for number in _SIGNALS if number != signal.SIGHUP or not under_nohup]
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
    while (number := os.read(read, 1)) and (number[0] not in _SIGNALS or _defers(number[0])):
        pass
    if not number:
        return
    closing = threading.Thread(target=_close, daemon=True)
    closing.start()
    closing.join(CLOSE_SECONDS)
    end(f"stopped by {signal.Signals(number[0]).name}; {sentence()}", 128 + number[0])


def _defers(number: int) -> bool:
    """Whether the signal is left to the command, which asks for it."""
    if not _deferring or _deferring[-1].number:
        return False
    _ask(_deferring[-1], number)
    return True


def _close() -> None:
    for close in reversed(_open):
        with contextlib.suppress(Exception):
            close()


@contextlib.contextmanager
def aborts_end_with(sentence: Callable[[], str]) -> Iterator[Callable[[], object]]:
    """Inside the block, a library that calls `abort` ends the process with code 1 and, after its own text, `sentence`.

    Python code cannot run in the handler of the signal: the thread that aborts may hold any lock, and Python's handlers
    run only after it is dead. So two C functions handle it. `faulthandler` writes to a pipe, which wakes a thread, and
    calls the handler before it: `sleep` of the C library, whose argument is then the number of the signal, SIGABRT = 6.
    The thread has these seconds to call `sentence` and end the process; if Python is stuck, the abort goes on. Where
    `faulthandler` is already enabled, as by PYTHONFAULTHANDLER, nothing changes.

    Yields a function that installs the handlers again, for when a library may have installed others.
    """
    if faulthandler.is_enabled():
        yield lambda: None
        return
    read, write = os.pipe()
    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)

    def install() -> int | None:
        faulthandler.disable()
        before = libc.signal(signal.SIGABRT, ctypes.cast(libc.sleep, ctypes.c_void_p))
        faulthandler.enable(write, all_threads=False)
        return before

    before = install()
    thread = threading.Thread(target=_wait_for_abort, args=(read, sentence), daemon=True)
    thread.start()
    try:
        yield install
    finally:
        faulthandler.disable()
        libc.signal(signal.SIGABRT, before)
        os.close(write)  # ends the thread
        thread.join()
        os.close(read)


def _wait_for_abort(read: int, sentence: Callable[[], str]) -> None:
    dump = b""
    while part := os.read(read, 1024):
        dump += part
        if b"Aborted" in dump:  # the other signals that faulthandler catches end the process at once
            end(sentence(), 1)


def end(sentence: str, code: int) -> None:
    """Prints a sentence to standard error and ends the process without Python's teardown; the first call counts."""
    _ending.acquire()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(OSError):
        os.write(2, f"agentrl: {sentence}\n".encode())
    os._exit(code)
