"""Screenshots that servers give of their instances, kept beside recorded episodes, for their page.

AgentGym's BabyAI draws the whole level (`/render`), and its WebArena the page in the browser (`/observation_metadata`).
An agent never sees them. They are files `screenshots/play-P/item-I-turn-T`, with an ending by their format: P is the
number of the episode on an item, from 1, and T that of the responses before.
"""

import base64
import binascii
import collections
import contextlib
import io
import os
import shutil
import threading
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Self

from PIL import Image

from agentrl_jax.errors import UserError, shortened
from agentrl_jax.io import atomic_write, files_under, read_regular
from agentrl_jax.services.catalog import NAMES
from agentrl_jax.services.client import ServiceError
from agentrl_jax.services.protocol import routes_of

FOLDER = "screenshots"
MAX_BYTES = 4 * 2**20
"""Largest screenshot, in bytes."""
MAX_PIXELS = 2**25
MAX_TOTAL = 2**30
"""Bytes of the screenshots of one evaluation."""
SECONDS = 5.0
"""Longest time of a request for one; an episode waits for it."""
SLOW_SECONDS, MAX_SLOW = 1.0, 4
"""A server that takes so long and gives none, so many times in a row, is asked no more."""

WITHOUT_RECORD = "--screenshots are kept in the folder of --record; give it, or leave them out"

_KINDS = ("png", "jpeg", "webp")
"""Endings of files, by the format of the picture. SVG, which can hold programs and addresses, is none of them."""


def refuse_without(service: str) -> None:
    """Raises a `UserError` if servers of a service give no screenshots."""
    if routes_of(service).screenshot is None:
        known = ", ".join(name for name in NAMES if routes_of(name).screenshot)
        raise UserError(f"--screenshots: {service} gives none, expected {known}; leave it out", key="--screenshots")


class NoScreenshot(ValueError):
    """What was sent is no screenshot; the message says why."""


class Screenshots:
    """Keeps the screenshots of one evaluation. Thread-safe. As a context, it deletes them after an error."""

    def __init__(self, record: str | os.PathLike[str], items: Container[int] | None = None):
        """Makes no folder yet; `record` is that of the episodes, and episodes of other `items` are not recorded."""
        self._folder, self._items = Path(record) / FOLDER, items
        self.play = 1
        """Number of the episodes that are played now, where all episodes of one number are played before the next."""
        self._bytes = sum(file.stat().st_size for file in files_under(self._folder)) if self._folder.is_dir() else 0
        self._kept = self._slow = 0
        self._missed: collections.Counter[str] = collections.Counter()
        self._finished: set[tuple[int, int]] = set()
        self._closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            return
        with self._lock:  # episodes may still go on in other threads
            self._closed = True
        shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # it has other files, too
            self._folder.parent.rmdir()

    def episode(self, item: int, *, play: int | None = None) -> "EpisodeScreenshots | None":
        """Those of an episode that begins; None if it is not recorded, or one on the item was finished before.

        Levels that fill up a batch are played again after their recorded episode has ended; an episode that has failed
        is played again, too, and replaces its screenshots.
        """
        key = (self.play if play is None else play, item)
        with self._lock:
            wanted = self._items is None or item in self._items
            return EpisodeScreenshots(self, *key) if wanted and key not in self._finished else None

    def finish(self, play: int, item: int) -> None:
        """Keeps what there is of an episode."""
        with self._lock:
            self._finished.add((play, item))

    def take(self, play: int, item: int, turn: int, ask: Callable[[], str]) -> None:
        """Keeps what `ask` returns, a data URL; where there is none, the episode goes on without."""
        if self._slow >= MAX_SLOW:
            self._miss("the server was too slow before, and was asked no more")
            return
        began = time.monotonic()
        try:
            kind, content = from_data_url(ask())
            with self._lock:
                self._slow = 0
                self._write(self._folder / f"play-{play}", f"{_stem(item, turn)}.{kind}", content)
        except (NoScreenshot, ServiceError, OSError) as error:
            self._miss(shortened(error), slow=time.monotonic() - began > SLOW_SECONDS)

    def lacks(self, item: int, play: int) -> bool:
        """Whether there is no screenshot of an episode."""
        return not any((self._folder / f"play-{play}").glob(f"item-{item}-turn-*"))

    def summary(self) -> str:
        """How many there are, and why some are missing."""
        line = f"{self._kept} screenshots in {self._folder}"
        if missed := self._missed.total():
            ((why, _),) = self._missed.most_common(1)
            line += f"; {missed} could not be had, most often: {why}"
        return line

    def _write(self, folder: Path, name: str, content: bytes) -> None:
        if self._closed:
            return
        if self._bytes + len(content) > MAX_TOTAL:
            raise NoScreenshot(f"there are {MAX_TOTAL >> 20} MiB already")
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(folder / name, binary=True) as file:
            file.write(content)
        self._bytes, self._kept = self._bytes + len(content), self._kept + 1

    def _miss(self, why: str, *, slow: bool = False) -> None:
        with self._lock:
            self._missed[why] += 1
            self._slow += slow


class EpisodeScreenshots:
    """Keeps the screenshots of one episode."""

    def __init__(self, kept: Screenshots, play: int, item: int):
        self._kept, self._play, self._item = kept, play, item

    def take(self, turn: int, ask: Callable[[], str]) -> None:
        """See `Screenshots.take`."""
        self._kept.take(self._play, self._item, turn, ask)

    def finish(self) -> None:
        """The episode has not failed: no other one replaces it."""
        self._kept.finish(self._play, self._item)


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
            content = _read(f"{stem}.{ending}")
            return f"data:image/{_kind(content)};base64,{base64.b64encode(content).decode()}"
        except (OSError, NoScreenshot):
            continue
    return None


def _read(path: str) -> bytes:
    """A file of limited size; a link, which could lead to any file, is an `OSError`."""
    content = read_regular(path, MAX_BYTES + 1, follow=False)
    if content is None:
        raise NoScreenshot(f"{path} is no file")
    if len(content) > MAX_BYTES:
        raise NoScreenshot(f"{path} is larger than {MAX_BYTES} bytes")
    return content


def _stem(item: int, turn: int) -> str:
    return f"item-{item}-turn-{turn}"


def _kind(content: bytes) -> str:
    """The format of a picture, by its bytes."""
    try:
        with Image.open(io.BytesIO(content), formats=[kind.upper() for kind in _KINDS]) as picture:
            kind, (width, height) = str(picture.format).lower(), picture.size
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise NoScreenshot("a picture that is no PNG, JPEG or WebP file") from error
    if width * height > MAX_PIXELS:
        raise NoScreenshot(f"a picture of {width} by {height}, expected at most {MAX_PIXELS} pixels")
    return kind
