"""Sokoban levels generated on the host with the original's distribution, for any number of boxes.

As `generator` says, but with random streams from NumPy; a failed level is resampled from a stream seeded with (seed,
attempt), where RAGEN retries four times and then reseeds itself with a salted hash that differs between processes.
"""

import numpy as np

from envs_jax.sokoban.generator import DIRECTIONS, STENCILS, TURN_PROBABILITY
from envs_jax.sokoban.text import BOX, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, WALL

MAX_POSITIONS = 300_000


def generate_pack(seeds, height=6, width=6, boxes=1, search_depth=300):
    """A level for each seed, i8[N, H, W]. A limit of depth of d allows d - 2 moves of the reverse play."""
    levels = [_level(seed, height, width, boxes, search_depth) for seed in seeds]
    return np.array(levels, np.int8).reshape(-1, height, width)


def _level(seed, height, width, boxes, search_depth):
    for attempt in range(10_000):
        rng = np.random.default_rng([seed, attempt])
        floor = _room(rng, height, width)
        cells = [(int(row), int(column)) for row, column in np.argwhere(floor)]
        if len(cells) <= boxes + 1:
            continue
        player, *targets = (cells[i] for i in rng.choice(len(cells), boxes + 1, replace=False))
        player, placed, displacement = _reverse_play(set(cells), player, tuple(targets), search_depth)
        if displacement == 0:
            continue
        player = _walk(rng, set(cells) - set(placed), player, displacement)
        level = np.where(floor, FLOOR, WALL).astype(np.int8)
        level[tuple(np.transpose(targets))] = TARGET
        level[tuple(np.transpose(placed))] = BOX
        level[player] = PLAYER_ON_TARGET if player in targets else PLAYER
        return level
    raise RuntimeError(f"seed {seed}: no {height}x{width} level with {boxes} boxes")


def _room(rng, height, width):
    floor = np.zeros((height, width), bool)
    row, column = int(rng.integers(1, height)), int(rng.integers(1, width))
    direction = DIRECTIONS[rng.integers(4)]
    for _ in range(int(1.7 * (height + width))):
        if rng.random() < TURN_PROBABILITY:
            direction = DIRECTIONS[rng.integers(4)]
        row = max(min(row + direction[0], height - 2), 1)
        column = max(min(column + direction[1], width - 2), 1)
        for down, right in STENCILS[rng.integers(len(STENCILS))]:
            floor[row + down, column + right] = True
    floor[[0, -1], :] = False
    floor[:, [0, -1]] = False
    return floor


def _reverse_play(floor, player, targets, search_depth):
    """Depth-first; returns player, boxes and displacement of the first position with the greatest score."""
    best = (0, player, targets, 0)
    seen = set()
    # Positions still to be visited, the next one last: player, boxes, box last pulled, swaps, budget.
    todo = [(player, targets, -1, 0, search_depth - 1)]
    while todo:
        player, boxes, last, swaps, budget = todo.pop()
        name = (player, frozenset(boxes))
        if budget <= 0 or name in seen or len(seen) >= MAX_POSITIONS:
            continue
        seen.add(name)
        displacement = sum(abs(b[0] - t[0]) + abs(b[1] - t[1]) for b, t in zip(boxes, targets))
        hidden = player in targets or not set(boxes).isdisjoint(targets)
        if not hidden and swaps * displacement > best[0]:
            best = (swaps * displacement, player, boxes, displacement)
        for down, right in reversed(DIRECTIONS):
            ahead, behind = (player[0] + down, player[1] + right), (player[0] - down, player[1] - right)
            if ahead not in floor or ahead in boxes:
                continue
            if behind in boxes:
                pulled = boxes.index(behind)
                moved = (*boxes[:pulled], player, *boxes[pulled + 1 :])
                todo.append((ahead, moved, pulled, swaps + (pulled != last), budget - 1))
            else:
                todo.append((ahead, boxes, last, swaps, budget - 1))
    return best[1:]


def _walk(rng, free, player, displacement):
    if rng.random() >= (0.8 if displacement == 1 else 0.5):
        return player
    for _ in range(3):
        free = free - {player}
        neighbors = [(player[0] + down, player[1] + right) for down, right in DIRECTIONS]
        neighbors = [cell for cell in neighbors if cell in free]
        if not neighbors:
            break
        player = neighbors[rng.integers(len(neighbors))]
        if rng.random() >= 0.5:
            break
    return player
