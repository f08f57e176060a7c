"""Games of TextArena (arXiv 2504.11442) for one player by their names, such as `textarena:GuessTheNumber-v0`.

The raw game is played, whose observations are the messages since the last one: the usual wrapper repeats the history,
and keeps it over a reset. An action is what a response has in its answer, such as `[42]`. Rewards and reasons are those
that a game tells when it is closed, so the last step closes it.
"""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import textarena

from agentrl_jax.environments.protocol import HostStep
from agentrl_jax.errors import BadValue

_PLAYER = 0
_ONE_GAME = threading.Lock()
"""Games draw from the random numbers of the process: one at a time, and each from its own."""


class TextArenaEnvironment:
    """A game as a `HostEnvironment`; a new one for each episode. A seed is that of TextArena's `reset`.

    Success is a reward of 1 without an invalid move, because a game that ends with one may pay nearly as much.
    """

    id = ""
    actions: tuple[str, ...] = ()

    def __init__(self, **options: Any):
        """Keeps options of `textarena.make`."""
        self._options = options
        self._game: Any = None
        self._random: Any = None

    def reset(self, seed: int) -> str:
        """See `HostEnvironment`."""
        with self._own_random():
            self._game = self._made(seed)
            return self._messages()

    def content(self, seed: int) -> str:
        """What the game hides: the first text of many games is the same for all seeds."""
        own, self._random = self._random, None
        with self._own_random():
            game = self._made(seed)
            text = "\n".join(message for _, message, _ in game.get_observation()[1])
        self._random = own
        hidden = repr(sorted(dict(game.state.game_state or {}).items(), key=lambda item: str(item[0])))
        return text if " at 0x" in hidden else f"{text}\n{hidden}"

    def step(self, response: str, actions: Sequence[str]) -> HostStep:
        """Makes the moves of a turn, until the game ends."""
        if not actions:
            return HostStep("No move.", valid=False)
        valid = True
        with self._own_random():
            for action in actions:
                before = self._game.state.error_count
                over, _ = self._game.step(action)
                valid &= self._game.state.error_count <= before
                if over:
                    return self._end()
            return HostStep(self._messages(), valid=valid)

    def close(self) -> None:
        """Nothing is held."""

    def _end(self) -> HostStep:
        said = self._messages()
        rewards, told = self._game.close()
        reward, about = float((rewards or {}).get(_PLAYER, 0.0)), (told or {}).get(_PLAYER, {})
        invalid = bool(about.get("invalid_move"))
        text = "\n".join(filter(None, [said, str(about.get("reason") or "")]))
        return HostStep(text, reward=reward, terminated=True, success=reward == 1 and not invalid, valid=not invalid)

    def _made(self, seed: int) -> Any:
        game = textarena.make(self.id, **self._options)
        game.reset(num_players=1, seed=seed)
        return game

    def _messages(self) -> str:
        """What was said since the last time, without the player's own moves."""
        said = self._game.get_observation()[1]
        return "\n".join(message for sender, message, _ in said if sender != _PLAYER)

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        with _ONE_GAME:
            outside = _random_state()
            if self._random is not None:
                _set_random(self._random)
            try:
                yield
            finally:
                self._random = _random_state()
                _set_random(outside)


def _random_state() -> Any:
    return random.getstate(), np.random.get_state()  # noqa: NPY002  (what games draw from)


def _set_random(state: Any) -> None:
    random.setstate(state[0])
    np.random.set_state(state[1])  # noqa: NPY002


def load(name: str) -> type[TextArenaEnvironment]:
    """The class of a game.

    Raises:
        BadValue: TextArena has no such game, or it is not for one player.
    """
    path, own = f"textarena:{name}", name if name.endswith("-raw") else f"{name}-raw"
    try:
        game = textarena.make(own)
        game.reset(num_players=1, seed=0)
        assert isinstance(game.state, textarena.SinglePlayerState)
    except AssertionError:
        raise BadValue.of("env", path, "which is not a game for one player") from None
    except Exception as error:
        why = f"which TextArena cannot make: {type(error).__name__}: {error}; give a name such as GuessTheNumber-v0"
        raise BadValue.of("env", path, why) from None
    return type("".join(filter(str.isalnum, name)), (TextArenaEnvironment,), {"id": own})
