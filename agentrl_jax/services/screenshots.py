"""Screenshots that servers give of their instances, kept beside recorded episodes, for their page.

AgentGym's BabyAI draws the whole level (`/render`), and its WebArena the page in the browser (`/observation_metadata`).
An agent never sees them. They are files `screenshots/play-P/item-I-turn-T`, with an ending by their format: P is the
number of the episode on an item, from 1, and T that of the responses before.
"""

import base64
import binascii
import collections
import contextlib
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from agentrl_jax.errors import UserError, shortened
from agentrl_jax.io import atomic_write
from agentrl_jax.services.catalog import NAMES
from agentrl_jax.services.client import ServiceError
from agentrl_jax.services.protocol import ROUTES, routes_of

FOLDER = "screenshots"
MAX_BYTES = 4 * 2**20
"""Largest screenshot, in bytes."""
MAX_TOTAL = 2**30
"""Bytes of the screenshots that one evaluation keeps."""
SECONDS = 5.0
"""Time of a request for one; an episode waits for it."""

_KINDS = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff", "webp": b"RIFF"}
"""Beginnings of files, by format. SVG, which can hold programs and addresses, is none of them."""


def refuse_without(service: str) -> None:
    """Raises a `UserError` if servers of a service give no screenshots."""
    if routes_of(service).screenshot is None:
        known = ", ".join(name for name, routes in ROUTES.items() if routes.screenshot and name in NAMES)
        raise UserError(f"--screenshots: {service} gives none, expected {known}; leave it out")


class NoScreenshot(ValueError):
    """What was sent is no screenshot; the message says why."""


class Screenshots:
    """Keeps the screenshots of one evaluation. Thread-safe. As a context, it deletes them after an error."""

    def __init__(self, record: str | os.PathLike[str]):
        """Makes no folder yet; `record` is that of the episodes."""
        self._folder = Path(record) / FOLDER
        self.play = 1
        """Number of the episodes that are played now, where all episodes of one number are played before the next."""
        self._bytes = self._kept = 0
        self._missed: collections.Counter[str] = collections.Counter()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            with contextlib.suppress(OSError):  # it has other files, too
                self._folder.parent.rmdir()

    def take(self, item: int, turn: int, ask: Callable[[], str], *, play: int | None = None) -> None:
        """Keeps what `ask` returns, a data URL; where there is none, the episode goes on without.

        An `OSError` says that the file cannot be written.
        """
        try:
            kind, content = from_data_url(ask())
        except (NoScreenshot, ServiceError) as error:
            self._miss(shortened(error))
            return
        with self._lock:
            self._bytes += len(content)
            full = self._bytes > MAX_TOTAL
        if full:
            self._miss(f"more than {MAX_TOTAL >> 20} MiB")
            return
        folder = self._folder / f"play-{self.play if play is None else play}"
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / f"{_stem(item, turn)}.{kind}", binary=True) as file:
            file.write(content)
        with self._lock:
            self._kept += 1

    def summary(self) -> str:
        """How many there are, and why some are missing."""
        line = f"{self._kept} screenshots in {self._folder}"
        if missed := self._missed.total():
            ((why, _),) = self._missed.most_common(1)
            line += f"; {missed} could not be had, most often: {why}"
        return line

    def _miss(self, why: str) -> None:
        with self._lock:
            self._missed[why] += 1


def from_data_url(text: str) -> tuple[str, bytes]:
    """The format, png, jpeg or webp, and the bytes of a picture in a data URL; `NoScreenshot` if it is none."""
    head, _, body = text.partition(",")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise NoScreenshot(f"expected a data URL of a picture in base64; found {shortened(head, 80)!r}")
    if len(body) > 4 * MAX_BYTES // 3 + 4:
        raise NoScreenshot(f"a picture of {3 * len(body) // 4} bytes, expected at most {MAX_BYTES}")
    try:
        content = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise NoScreenshot(f"a picture that is no base64 ({error})") from error
    return _kind(content), content


def kept_screenshot(record: str | os.PathLike[str], play: int, item: int, turn: int) -> str | None:
    """The data URL of a screenshot of a recorded episode; None if there is none that can be used."""
    stem = Path(record) / FOLDER / f"play-{play}" / _stem(item, turn)
    for ending in _KINDS:
        try:
            with open(f"{stem}.{ending}", "rb") as file:
                content = file.read(MAX_BYTES + 1)
            if len(content) <= MAX_BYTES:
                return f"data:image/{_kind(content)};base64,{base64.b64encode(content).decode()}"
        except (OSError, NoScreenshot):
            continue
    return None


def _stem(item: int, turn: int) -> str:
    return f"item-{item}-turn-{turn}"


def _kind(content: bytes) -> str:
    for kind, start in _KINDS.items():
        if content.startswith(start) and (kind != "webp" or content[8:12] == b"WEBP"):
            return kind
    raise NoScreenshot("a picture that is no PNG, JPEG or WebP file")
