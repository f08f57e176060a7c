"""The Wordle of LMRL-Gym: the guesses with their colors."""

import re

from agentrl_jax.services.environments.wordle.env import TRIES
from agentrl_jax.services.scenes.reading import lines
from envs_jax.scenes import Scene, grid_scene

_LETTERS = 5
_COLORS = re.compile(r"^([bgy](?: [bgy]){4})$", re.MULTILINE)
_WORD = re.compile(r"[a-zA-Z]{5}")
_TILES = {"g": "green tile", "y": "yellow tile", "b": "black tile"}
_REFUSED = "invalid word"


class Reader:
    """Collects the guesses; there is no scene after more of them than the game has tries."""

    def __init__(self) -> None:
        self._rows: list[list[list[str]]] = []

    def read(self, action: str, text: str) -> Scene | None:
        """As `TextReader.read`."""
        colors = _COLORS.search(text)
        tiles: list[str] = []
        if action and colors:
            tiles = [_TILES[color] for color in colors[1].split()]
        elif action and _REFUSED in text:
            tiles = ["refused tile"] * _LETTERS
        if tiles:
            guess = action.replace(" ", "")
            letters = [[f"letter {letter}"] for letter in guess.upper()] if _WORD.fullmatch(guess) else [[]] * _LETTERS
            self._rows.append([[tile, *letter] for tile, letter in zip(tiles, letters, strict=True)])
        if len(self._rows) > TRIES:
            return None
        rows = [*self._rows, *([[["floor"]] * _LETTERS] * (TRIES - len(self._rows)))]
        return grid_scene(rows, lines(text) if action else ())
