"""Packs of Sokoban levels, and a reverse play of two boxes on the host to compare the generator's with."""

import functools

import jax
import numpy as np

from envs_jax.sokoban.generator import DIRECTIONS, make_generator

MAX_POSITIONS = 300_000


@functools.cache
def _program(*options):
    return jax.jit(jax.vmap(lambda seed: make_generator(*options)(jax.random.key(seed))))


def generate_pack(seeds, height=6, width=6, boxes=1, search_depth=300):
    return np.asarray(_program(height, width, boxes, search_depth)(np.array(seeds)))


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
