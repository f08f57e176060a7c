"""Tokens and text of every board, where all can be listed."""

import jax
import numpy as np
import pytest
from boards import assert_tokens_are_text, sokoban_boards, start

from agentrl_jax.text import tokenizer
from envs_jax.frozen_lake import FrozenLake
from envs_jax.sokoban import Sokoban


@pytest.fixture(scope="module")
def small():
    return tokenizer.load_small()


def test_every_board_of_the_classic_lake(small):
    """All hole patterns with the start and the goal in their corners, the player on every cell: 2**14 * 16 boards."""
    env = FrozenLake(4, 4)
    levels = np.zeros((2**14, 16), np.int8)
    levels[:, 1:15] = (np.arange(2**14)[:, None] >> np.arange(14)) & 1
    levels[:, 0], levels[:, 15] = 3, 2
    state = start(env, levels.reshape(-1, 4, 4))
    count = 0
    for cells in np.split(np.eye(16, dtype=bool).reshape(16, 4, 4), 4):
        placed = [state.replace(player=np.broadcast_to(cell, (2**14, 4, 4))) for cell in cells]
        count += assert_tokens_are_text(small, env, jax.tree.map(lambda *x: np.concatenate(x), *placed), room=20)
    assert count == 2**18


def test_every_board_of_five_by_five_sokoban(small):
    env = Sokoban(5, 5)
    boards = sokoban_boards()
    assert assert_tokens_are_text(small, env, start(env, boards), room=32) == len(boards) == 50688
