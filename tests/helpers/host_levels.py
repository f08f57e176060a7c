"""Sokoban levels generated on the host with exactly the original's distribution, for any number of boxes.

`generator` states the distribution. Two details differ from RAGEN but do not change it: both random streams come from
NumPy's `Generator`, and a failed level is resampled from a generator seeded with (seed, attempt), where RAGEN retries
four times and then reseeds itself with a salted hash that differs between processes.
Shapes: `H`, `W` rows and columns, `N` levels.
"""

from collections.abc import Iterable

import numpy as np

from envs_jax.sokoban import oracle
from envs_jax.sokoban.generator import DIRECTIONS, STENCILS, TURN_PROBABILITY
from envs_jax.sokoban.text import BOX, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, WALL

MAX_ATTEMPTS = 10_000
"""Maximum number of attempts at one level."""

MAX_POSITIONS = 300_000
"""Positions after which the reverse play stops, as in the original."""

Cell = tuple[int, int]


def generate_pack(
    seeds: Iterable[int], height: int = 6, width: int = 6, boxes: int = 1, search_depth: int = 300
) -> np.ndarray:
    """Generates one level per seed.

    Args:
        seeds: Non-negative numbers; a level depends only on its own seed.
        height: Rows, at least 5.
        width: Columns, at least 5.
        boxes: Boxes of each level, at least 1.
        search_depth: Depth limit of the reverse play; a limit of d allows d - 2 moves.

    Returns:
        A pack of cell codes, i8[N, H, W].

    Raises:
        ValueError: an option is out of range.
        RuntimeError: no attempt gave a level, because the boxes do not fit the board.
    """
    if height < 5 or width < 5 or boxes < 1 or search_depth < boxes + 2:
        raise ValueError(
            f"a pack of {height}x{width} levels with {boxes} boxes at search depth {search_depth} was asked for; "
            "expected sides of at least 5, at least 1 box and a depth of at least boxes + 2"
        )
    levels = [_level(seed, height, width, boxes, search_depth) for seed in seeds]
    return np.array(levels, np.int8).reshape(-1, height, width)


def _level(seed: int, height: int, width: int, boxes: int, search_depth: int) -> np.ndarray:
    for attempt in range(MAX_ATTEMPTS):
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
        for cell in targets:
            level[cell] = TARGET
        for cell in placed:
            level[cell] = BOX
        level[player] = PLAYER_ON_TARGET if player in targets else PLAYER
        return level
    raise RuntimeError(
        f"seed {seed}: no {height}x{width} level with {boxes} boxes in {MAX_ATTEMPTS} attempts; "
        "use a larger board, fewer boxes or a greater search_depth"
    )


def _room(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
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


def _reverse_play(
    floor: set[Cell], player: Cell, targets: tuple[Cell, ...], search_depth: int
) -> tuple[Cell, tuple[Cell, ...], int]:
    """Depth-first; returns player, boxes and displacement of the first position with the greatest score."""
    best = (0, player, targets, 0)
    seen: set[tuple[Cell, frozenset[Cell]]] = set()
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


def _walk(rng: np.random.Generator, free: set[Cell], player: Cell, displacement: int) -> Cell:
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


def plan_length(level: np.ndarray) -> int | None:
    """The length of a shortest plan, or None for an unsolvable level."""
    plan = oracle.solve(level)
    return None if plan is None else len(plan)
