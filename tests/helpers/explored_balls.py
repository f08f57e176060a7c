"""Levels of BabyAI on which the explorer looks for a red ball."""

import numpy as np
from babyai_games import RED_BALLS, small_items

LIMIT = 20
BOARDS = small_items(RED_BALLS[:24])
NONE = np.full((len(BOARDS), 1), -1, np.int32)


def names_ball(text):
    return "red ball" in (text.partition("\n")[2] if text.startswith("Your goal") else text)
