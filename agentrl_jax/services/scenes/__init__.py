"""What the texts of a service show of its state, for the page of recorded episodes.

A service gives no state, and a record of its episodes holds texts alone. So a scene is read from the texts that the
agent has read and from its actions: what it carries, the room that it has seen last, the documents that it has found.
It shows no more than the agent could know. Servers of AgentGym give the same texts, so that their episodes have scenes,
too, and those of API models.

The texts of imported logs are not trusted: each is read once, what is read of it is limited, and no pattern takes more
than linear time.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from agentrl_jax.service_names import text_service
from agentrl_jax.services.action_parsing import reader_of
from agentrl_jax.services.scenes import remote
from envs_jax.scenes import Scene

MAX_CHARACTERS = 50_000
"""A longer text is cut before it is read."""
MAX_ACTION = 10_000
"""The same of an action, in characters."""
MAX_SCENES = 200
"""Texts of an attempt that are read."""


class TextReader(Protocol):
    """Reads the texts of one attempt at an item."""

    def read(self, action: str, text: str) -> Scene | None:
        """Reads the next text, the answer to an action, and returns the scene after it.

        The action is empty for the first text and where a response had none. There is no scene where the texts show
        none, for instance because they have another form.
        """


def text_reader_of(name: str) -> Callable[[], TextReader] | None:
    """What makes a reader of a service's texts, by the name of the service; None if there is none."""
    found: Callable[[], TextReader]
    if own := text_service(name, "scenes"):
        found = own.Reader
        return found
    return remote.READERS.get(name)


def text_scenes(name: str, texts: Sequence[str], responses: Sequence[str], first: int = 0) -> list[Scene]:
    """The scenes of an episode, or of an attempt that begins in turn `first`.

    There is one of the start and one after each response whose answer is known, as far as texts show one, and of the
    first `MAX_SCENES` texts. Scenes have two more keys, as those of compiled environments have: `turn`, the index of
    the turn of the response, and `action`, None for the start.

    Args:
        name: of the service.
        texts: what was read before each response, and maybe after the last one.
        responses: what the agent wrote.
        first: index of the first turn.
    """
    make, parse = text_reader_of(name), reader_of(name)
    if make is None or parse is None:
        return []
    reader, found = make(), []
    for number, text in enumerate(texts[:MAX_SCENES]):
        response = responses[number - 1][:MAX_CHARACTERS] if number else ""
        action = (parse(response).action or "")[:MAX_ACTION] if number else ""
        drawn = reader.read(action, text[:MAX_CHARACTERS])
        if drawn is not None:
            found.append({"turn": first + max(number - 1, 0), "action": action if number else None, **drawn})
    return found
