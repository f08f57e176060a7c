"""What the texts of a service show of its state, for the page of recorded episodes.

A service gives no state, and a record of its episodes holds texts alone. So a scene is read from the texts that the
agent has read and from its actions: what it carries, the room that it has seen last, the documents that it has found.
It shows no more than the agent could know. Servers of AgentGym give the same texts, so that their episodes have scenes,
too, and those of API models.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from agentrl_jax.services.action_parsing import READERS
from envs_jax.scenes import Scene

MAX_CHARACTERS = 50_000
"""A longer text is cut before it is read."""
MAX_ACTION = 10_000
"""The same of an action, in characters."""
MAX_SCENES = 200
"""Scenes of an attempt: each is read from all texts before it."""


class Seen(NamedTuple):
    """What an agent has seen of an episode, or of an attempt at its item."""

    texts: Sequence[str]
    """What it has read: the first observation, and the answer to each of its actions."""
    actions: Sequence[str]
    """Its actions, of which there is one less; empty where a response had none."""

    @property
    def answers(self) -> Iterator[tuple[str, str]]:
        """Each action with its answer."""
        return zip(self.actions, self.texts[1:], strict=True)


TextScene = Callable[[Seen], Scene | None]
"""Gives the scene after the last text; None if the texts show none, for instance because they have another form."""

_MODULES = {
    **{name: name for name in ("babyai", "maze", "sciworld", "textcraft", "wordle")},
    **dict.fromkeys(("alfworld", "searchqa", "webarena", "webshop"), "remote"),
}


def text_scene_of(name: str) -> TextScene | None:
    """The function that gives the scenes of a service, by its name; None if it has none."""
    module = _MODULES.get(name)
    if module is None:
        return None
    found: TextScene = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    return found


def text_scenes(name: str, texts: Sequence[str], responses: Sequence[str], first: int = 0) -> list[Scene]:
    """The scenes of an episode, or of an attempt that begins in turn `first`.

    There is one of the start and one after each response whose answer is known, from the first text on that shows one,
    and of the first `MAX_SCENES` texts.
    Scenes have two more keys, as those of compiled environments have: `turn`, the index of the turn of the response,
    and `action`, None for the first scene.

    Args:
        name: of the service.
        texts: what was read before each response, and maybe after the last one.
        responses: what the agent wrote.
        first: index of the first turn.
    """
    scene, read = text_scene_of(name), READERS.get(name)
    if scene is None or read is None:
        return []
    texts = [text[:MAX_CHARACTERS] for text in texts]
    actions = [(read(response[:MAX_CHARACTERS]).action or "")[:MAX_ACTION] for response in responses]
    found: list[Scene] = []
    for number in range(min(len(texts), MAX_SCENES)):
        drawn = scene(Seen(texts[: number + 1], actions[:number]))
        if drawn is not None:
            turn = first + max(number - 1, 0)
            found.append({"turn": turn, "action": actions[number - 1] if found else None, **drawn})
    return found
