"""The Wordle of LMRL-Gym: the guesses with their colors."""

import re

from agentrl_jax.services.environments.wordle import TRIES
from agentrl_jax.services.scenes import Seen
from agentrl_jax.services.scenes.reading import last_answer
from envs_jax.scenes import Scene, grid_scene

_LETTERS = 5
_COLORS = re.compile(r"^([bgy](?: [bgy]){4})[ \t]*$", re.MULTILINE)
_WORD = re.compile(r"[a-zA-Z]{5}")
_TILES = {"g": "green tile", "y": "yellow tile", "b": "black tile"}
_REFUSED = "invalid word"


def wordle(seen: Seen) -> Scene | None:
    """The scene; None if more guesses have been made than the game has tries."""
    rows = []
    for action, answer in seen.answers:
        guess = action.replace(" ", "")
        letters = guess.upper() if _WORD.fullmatch(guess) else "?" * _LETTERS
        if colors := _COLORS.findall(answer):
            tiles = [_TILES[color] for color in colors[-1].split()]
        elif _REFUSED in answer:
            tiles = ["refused tile"] * _LETTERS
        else:
            continue
        rows.append([[tile, *_letter(letter)] for tile, letter in zip(tiles, letters, strict=True)])
    if len(rows) > TRIES:
        return None
    rows += [[["floor"]] * _LETTERS for _ in range(TRIES - len(rows))]
    return grid_scene(rows, last_answer(seen.texts))


def _letter(letter: str) -> list[str]:
    return [] if letter == "?" else [f"letter {letter}"]
