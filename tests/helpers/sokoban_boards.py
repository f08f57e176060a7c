"""Boards of Sokoban, what RAGEN's generator gives, and a second, slow implementation of the rules to compare with."""

import functools

import jax
import numpy as np

from envs_jax.sokoban.generator import make_generator
from envs_jax.sokoban.levels import check_level

SIMPLE_LENGTHS = {1: 8.9, 2: 24.1, 3: 10.3, 4: 14.7, 5: 16.9, 6: 10.0, 7: 5.6, 8: 5.5, 9: 2.0, 10: 1.3}
"""Shares of the lengths of plans, measured on RAGEN's generator."""
STEPS = ((-1, 0), (1, 0), (0, -1), (0, 1))
BOXES, PLAYERS = {3, 4}, {5, 6}


TOGETHER = 32
TWO_BOXES = (7, 7, 2, 8)


@functools.cache
def _program(*options):
    return jax.jit(jax.vmap(make_generator(*options)))


def generate(keys, *options):
    """Levels of these keys, some at a time, so that one program is enough for any number."""
    program, rows = _program(*options), np.arange(-(-len(keys) // TOGETHER) * TOGETHER) % len(keys)
    return np.concatenate([program(keys[part]) for part in rows.reshape(-1, TOGETHER)])[: len(keys)]


def generate_pack(seeds, height=6, width=6, boxes=1, search_depth=300):
    return generate(jax.vmap(jax.random.key)(np.array(seeds)), height, width, boxes, search_depth)


def check_all(levels, boxes):
    for number, level in enumerate(levels):
        check_level(level, f"level {number}")
    assert (np.isin(levels, (3, 4)).sum((1, 2)) == boxes).all()
    assert not (levels == 3).any()
    assert (levels[:, [0, -1], :] == 0).all()
    assert (levels[:, :, [0, -1]] == 0).all()


def cell(codes, place):
    row, column = place
    inside = 0 <= row < len(codes) and 0 <= column < len(codes[0])
    return codes[row][column] if inside else 0


def covered(codes):
    return sum(code == 3 for row in codes for code in row)


def uncovered(codes):
    return sum(code in (2, 6) for row in codes for code in row)


def step(codes, action):
    """One action on nested lists of cell codes; returns (codes, reward, solved, moved)."""
    codes = [list(row) for row in codes]
    before = covered(codes)
    player = next((r, c) for r, row in enumerate(codes) for c, code in enumerate(row) if code in PLAYERS)
    down, right = STEPS[action]
    ahead, beyond = (player[0] + down, player[1] + right), (player[0] + 2 * down, player[1] + 2 * right)
    moved = False
    if cell(codes, ahead) in BOXES and cell(codes, beyond) in (1, 2):
        codes[beyond[0]][beyond[1]] = 3 if cell(codes, beyond) == 2 else 4
        codes[ahead[0]][ahead[1]] = 2 if cell(codes, ahead) == 3 else 1
    if cell(codes, ahead) in (1, 2):
        codes[ahead[0]][ahead[1]] = 6 if cell(codes, ahead) == 2 else 5
        codes[player[0]][player[1]] = 2 if cell(codes, player) == 6 else 1
        moved = True
    after, solved = covered(codes), uncovered(codes) == 0
    reward = -0.1 + (after > before) - (after < before) + 10 * solved
    return codes, reward, solved, moved


def spell(codes, symbols):
    """The lists and the grid of a text observation."""
    grid = "\n".join("".join(symbols[code] for code in row) for row in codes)

    def places(*wanted):
        found = [f"({r},{c})" for r, row in enumerate(codes) for c, code in enumerate(row) if code in wanted]
        return " ".join(found) or "none"

    lists = (
        f"Board: {len(codes)} rows, {len(codes[0])} columns\n"
        f"Empty targets: {places(2)}\nBoxes off target: {places(4)}\nBoxes on target: {places(3)}\n"
        f"{'You, on a target' if places(6) != 'none' else 'You'}: {places(5, 6)}"
    )
    return f"{lists}\n{grid}"


def board(text):
    """Cell codes i8[H, W] of a drawing in codes, such as "000 052 000"."""
    return np.array([[int(code) for code in row] for row in text.split()], np.int8)
