"""Screenshots that were kept beside recorded episodes, as parts of their scenes."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from agentrl_jax.config import TaskConfig
from agentrl_jax.services.action_parsing import reader_of
from agentrl_jax.services.items import load_items
from agentrl_jax.services.screenshots import FOLDER, kept_screenshot
from envs_jax.scenes import Scene, text_scene

MAX_CHARACTERS = 64 * 2**20
"""Characters of all screenshots of a page."""


class PageScreenshots:
    """Adds the screenshots of a record to scenes, as `image`, a data URL, until the page has enough of them."""

    def __init__(self, record: str | os.PathLike[str], note: Callable[[str], None]):
        """Reads nothing yet; `note` gets a line when the first one is left out."""
        self._record, self._note = Path(record), note
        self._any = (self._record / FOLDER).is_dir()
        self._characters = 0

    def items_of(self, tasks: Sequence[TaskConfig]) -> list[list[int]] | None:
        """The items of the levels of an evaluation's tasks; None if it has no screenshots, or they are not known."""
        if not self._any:
            return None
        try:
            return [list(load_items(task.held_out, task.env)) for task in tasks]
        except ValueError as error:  # such as a file of items that is not here
            self._note(f"no screenshots: {error}")
            return None

    def add(self, scenes: Sequence[Scene], service: str, play: int, item: int, responses: Sequence[str]) -> list[Scene]:
        """The scenes of an episode, see `services.scenes.text_scenes`, with the screenshot of each.

        Where the texts showed no scene, there is one with the screenshot alone.
        """
        read = reader_of(service)
        if not self._any or read is None:
            return list(scenes)
        known = {0 if scene["action"] is None else scene["turn"] + 1: scene for scene in scenes}
        found = []
        for number in range(len(responses) + 1):
            scene, image = known.get(number), self._image(play, item, number)
            if scene is None and image is not None:
                action = (read(responses[number - 1]).action or "") if number else None
                scene = {"turn": max(number - 1, 0), "action": action, **text_scene(())}
            if scene is not None:
                found.append(scene if image is None else {**scene, "image": image})
        return found

    def _image(self, play: int, item: int, turn: int) -> str | None:
        full = self._characters > MAX_CHARACTERS
        image = None if full else kept_screenshot(self._record, play, item, turn)
        if image is None:
            return None
        self._characters += len(image)
        if self._characters <= MAX_CHARACTERS:
            return image
        self._note(f"screenshots beyond {MAX_CHARACTERS >> 20} MiB are left out; show fewer episodes")
        return None
