"""Generates Sokoban levels on the device: a random room, a placement, and reverse play.

The distribution is RAGEN's (its adaptation of gym_sokoban's `room_utils`), implemented from its description:

1. *Topology.* A walk of floor(1.7 * (rows + columns)) steps stamps one of five 3x3 stencils of floor at each position.
   It starts at a cell with coordinates uniform in [1, side - 1], redraws its direction with probability 0.35 a step,
   and is clamped to the interior. The border is wall.
2. *Placement.* Player and boxes are placed on distinct uniform floor cells; the cells of the boxes become the targets.
   More than `boxes + 1` floor cells are needed.
3. *Reverse play.* The player walks and pulls; stepping away from a box directly behind always pulls it. The score of a
   position is `swaps * displacement`: displacement is the sum of the Manhattan distances of the boxes to their own
   targets, swaps counts how often another box is pulled than before (the first pull counts). The score is 0 if the
   player or a box is on a target. The best position becomes the level, if its displacement is positive.
4. *Walk.* With probability 0.8 (displacement 1) or 0.5 (otherwise) the player walks 1 to 3 steps over free cells not
   visited before, uniformly, and continues with probability 0.5 after each step.

A failed attempt is repeated with its number folded into the key.

*One box*: the search is breadth-first over a boolean array [player, box]. With one box, `swaps` is at most 1, so the
level is a reachable position with the greatest displacement. The original takes the first one that a depth-first search
finds; here ties go to the fewest moves, then to the smallest player cell, then to the smallest box cell in reading
order. Unless `search_depth` is a limit (300 is none, 30 hardly), displacements have exactly the original's
distribution. On 12,000 levels of 6x6, mean length of optimal plans 4.02 (the original: 4.12), success of ten random
actions 17.7 % (17.2 %), standard errors 0.2.

*Two boxes*: scores depend on the path, so the search is depth-first, as in the original, with an explicit stack and a
list of visited positions. The only difference is the limit on visited positions (`MAX_VISITED` in place of 300,000). On
2,048 levels of 8x8 at depth 10: mean length of optimal plans 5.74 to 5.82 (5.82), at most 10 for 99.3 % (99.5 %);
success of ten random actions 2.6 to 2.8 % (2.4 to 2.8 %).

Shapes: `C` cells of the interior (border removed), `n` boxes.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Int8, Int32, Key

from envs_jax.batching import on_rows, while_active
from envs_jax.errors import BadValue
from envs_jax.grid import neighbors
from envs_jax.sokoban.text import BOX, DIRECTIONS, FLOOR, PLAYER, PLAYER_ON_TARGET, TARGET, WALL

TURN_PROBABILITY = 0.35
STENCILS = (
    ((0, -1), (0, 0), (0, 1)),
    ((-1, 0), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, 0)),
    ((0, -1), (0, 0), (1, -1), (1, 0)),
    ((0, 0), (0, 1), (1, 0)),
)
"""Floor cells around the position of the walk, as (row, column) offsets."""

MAX_SIDE, MAX_DEPTH = 32, 1000
"""Limits of the device generator: its searches number positions in 32 bits."""

MAX_VISITED = 512
"""Positions after which the two-box search stops; 25,000 rooms of 8x8 at search depth 10 had at most 324."""


class Placed(NamedTuple):
    """A position in a room, in flattened interior cells.

    Box i began on target i. `displacement` is the sum of the Manhattan distances of boxes to their own targets; 0 for a
    failed attempt.
    """

    floor: Bool[Array, " C"]
    targets: Int32[Array, " n"]
    boxes: Int32[Array, " n"]
    player: Int32[Array, ""]
    displacement: Int32[Array, ""]


def make_generator(
    height: int, width: int, boxes: int, search_depth: int
) -> Callable[[Key[Array, ""]], Int8[Array, "H W"]]:
    """Returns `generate` for some options; a `ValueError` if one is out of range, see `make_sokoban`."""
    if not (5 <= height <= MAX_SIDE and 5 <= width <= MAX_SIDE):
        raise BadValue(
            f"a generated board is {height}x{width}; expected 5x5 to {MAX_SIDE}x{MAX_SIDE}", "board", (height, width)
        )
    if boxes not in (1, 2):
        raise BadValue(
            f"the device generator was asked for {boxes} boxes; expected 1 or 2: write a pack instead", "boxes", boxes
        )
    if not boxes + 2 <= search_depth <= MAX_DEPTH:
        raise BadValue(
            f"search_depth is {search_depth}; expected {boxes + 2} (every box pulled once) to {MAX_DEPTH}",
            "search_depth",
            search_depth,
        )
    return partial(generate, height=height, width=width, boxes=boxes, search_depth=search_depth)


def generate(key: Key[Array, ""], height: int, width: int, boxes: int, search_depth: int) -> Int8[Array, "H W"]:
    """Generates one solvable level; see the module for its distribution. A `search_depth` of d allows d - 2 moves."""
    grid = _Grid(height - 2, width - 2)
    num_room_uniforms = 3 + 3 * int(1.7 * (height + width))
    search = _search_one_box if boxes == 1 else _search_two_boxes

    def attempt(carry: tuple[jax.Array, Placed]) -> tuple[jax.Array, Placed]:
        index, last = carry
        # One draw for everything: each further call would add about a second of compilation on a CPU.
        uniforms = jax.random.uniform(jax.random.fold_in(key, index), (num_room_uniforms + grid.size,))
        start, enough = _place(uniforms[num_room_uniforms:], _room(uniforms[:num_room_uniforms], grid), boxes)
        # Under vmap finished rows still run with the others; with nothing wanted, their search ends at once.
        return index + 1, search(grid, start, search_depth, enough & (last.displacement == 0))

    zero, zeros = jnp.int32(0), jnp.zeros(boxes, jnp.int32)
    none = Placed(floor=jnp.zeros(grid.size, bool), targets=zeros, boxes=zeros, player=zero, displacement=zero)
    placed = jax.lax.while_loop(lambda carry: carry[1].displacement == 0, attempt, (jnp.int32(1), none))[1]
    # Attempts start at 1; key 0 is used for the walk.
    player = _walk(jax.random.fold_in(key, 0), grid, placed)

    cells = jnp.arange(grid.size)
    on_target = jnp.any(cells == placed.targets[:, None], axis=0)
    codes = jnp.where(placed.floor, FLOOR, WALL)
    codes = jnp.where(on_target, TARGET, codes)
    codes = jnp.where(jnp.any(cells == placed.boxes[:, None], axis=0), BOX, codes)
    codes = jnp.where(cells == player, jnp.where(on_target, PLAYER_ON_TARGET, PLAYER), codes)
    return jnp.pad(codes.reshape(grid.rows, grid.columns).astype(jnp.int8), 1, constant_values=WALL)


class _Grid:
    """Constant tables of an interior of `rows` x `columns` cells; cell number `size` is the border."""

    def __init__(self, rows: int, columns: int):
        self.rows, self.columns, self.size = rows, columns, rows * columns
        row, column = np.divmod(np.arange(self.size, dtype=np.int32), columns)
        cells = np.pad(np.arange(self.size, dtype=np.int32).reshape(rows, columns), 1, constant_values=self.size)
        self.ahead = neighbors(cells, DIRECTIONS)  # i32[C, 4]
        self.behind = self.ahead[:, [1, 0, 3, 2]]
        self.distance = np.abs(row[:, None] - row) + np.abs(column[:, None] - column)  # i32[C, C]


def _room(uniforms: Float[Array, " R"], grid: _Grid) -> Bool[Array, " C"]:
    """Makes the floor of a room from R = 3 + 3 * steps uniform numbers."""
    limits = jnp.array([grid.rows - 1, grid.columns - 1])
    position = _pick(uniforms[:2], limits + 2)
    direction = _pick(uniforms[2], 4)
    turn, new_direction, stencil = uniforms[3:].reshape(3, -1)
    turns, directions, stencils = turn < TURN_PROBABILITY, _pick(new_direction, 4), _pick(stencil, len(STENCILS))

    def move(carry, draw):
        position, direction = carry
        direction = jnp.where(draw[0], draw[1], direction)
        position = jnp.clip(position + jnp.array(DIRECTIONS)[direction], 0, limits)
        return (position, direction), position

    _, path = jax.lax.scan(move, (position, direction), (turns, directions))
    # Stencils of three cells repeat their last one; stamping a cell twice changes nothing.
    offsets = jnp.array([(*stencil, stencil[-1])[:4] for stencil in STENCILS])
    stamped = path[:, None] + offsets[stencils]
    inside = jnp.all((stamped >= 0) & (stamped <= limits), axis=-1)
    cells = jnp.where(inside, stamped[..., 0] * grid.columns + stamped[..., 1], -1).reshape(-1)
    return jnp.any(cells[:, None] == jnp.arange(grid.size), axis=0)


def _pick(draw: jax.Array, choices: jax.Array | int) -> jax.Array:
    """Maps uniform numbers in [0, 1) to integers from 0 to `choices` - 1."""
    return jnp.floor(draw * choices).astype(jnp.int32)


def _place(uniforms: Float[Array, " C"], floor: Bool[Array, " C"], boxes: int) -> tuple[Placed, Bool[Array, ""]]:
    """Places player and boxes on distinct floor cells by uniform numbers; also whether there are enough cells."""
    order = jnp.where(floor, uniforms, -1.0)
    cells = jax.lax.top_k(order, boxes + 1)[1].astype(jnp.int32)
    start = Placed(floor=floor, targets=cells[1:], boxes=cells[1:], player=cells[0], displacement=jnp.int32(0))
    return start, jnp.sum(floor) > boxes + 1


def _search_one_box(grid: _Grid, start: Placed, search_depth: int, wanted: jax.Array) -> Placed:
    """Breadth-first reverse play. Returns the best position; displacement 0 if there is none or `wanted` is false."""
    cells = jnp.arange(grid.size)
    target = start.targets[0]
    allowed = start.floor[:, None] & start.floor[None, :] & ~jnp.eye(grid.size, dtype=bool)
    behind = grid.behind.T[:, :, None] == np.arange(grid.size)  # bool[4, C, C]: the box is behind

    def shift(mask: jax.Array, direction: int) -> jax.Array:
        down, right = DIRECTIONS[direction]
        board = mask.reshape(grid.rows, grid.columns, -1)
        board = jnp.pad(board, ((max(down, 0), max(-down, 0)), (max(right, 0), max(-right, 0)), (0, 0)))
        row, column = max(-down, 0), max(-right, 0)
        return board[row : row + grid.rows, column : column + grid.columns].reshape(mask.shape)

    def expand(active, state, allowed):
        moves, frontier, reached = state
        found = jnp.zeros_like(frontier)
        for direction in range(4):
            walked = shift(frontier & ~behind[direction], direction)
            pulling = jnp.any(frontier & behind[direction], axis=1, keepdims=True)
            found |= (walked | (shift(pulling, direction) & behind[direction])) & allowed
        frontier = found & (reached > search_depth) & active
        moves += active
        return jnp.any(frontier) & (moves < search_depth - 2), (moves, frontier, jnp.where(frontier, moves, reached))

    @on_rows
    def reach(frontier, allowed):
        state = jnp.zeros(len(frontier), jnp.int32), frontier, jnp.where(frontier, 0, search_depth + 1)
        return while_active(jax.vmap(expand), jnp.any(frontier, axis=(1, 2)), state, allowed)[-1]

    reached = reach((cells[:, None] == start.player) & (cells == target) & wanted, allowed)
    displacement = jnp.asarray(grid.distance)[target]
    score = jnp.where((reached <= search_depth) & (cells[:, None] != target), displacement, 0)
    best = jnp.argmax(score * (search_depth + 2) - reached)
    player, box = jnp.divmod(best, grid.size)
    return start._replace(player=player, boxes=box[None], displacement=score.reshape(-1)[best])


def _search_two_boxes(grid: _Grid, start: Placed, search_depth: int, wanted: jax.Array) -> Placed:
    """Depth-first reverse play. Returns the best position; displacement 0 if there is none or `wanted` is false."""
    floor = jnp.append(start.floor, False)
    levels = search_depth - 1

    def position_id(player, boxes):
        """Returns one number for a position; it does not distinguish the boxes."""
        return (player * grid.size + jnp.min(boxes, axis=-1)) * grid.size + jnp.max(boxes, axis=-1)

    def visit(active, state, given):
        depth, stack, count, visited, best = state
        floor, targets = given
        ahead, behind, distance = jnp.asarray(grid.ahead), jnp.asarray(grid.behind), jnp.asarray(grid.distance)
        player, boxes, last, swaps = stack[depth, 0], stack[depth, 1:3], stack[depth, 3], stack[depth, 4]
        next_players = ahead[player]
        pulls = behind[player][:, None] == boxes
        boxes_next = jnp.where(pulls, player, boxes)
        next_ids = position_id(next_players, boxes_next)
        known = jnp.any(visited[:, None] == next_ids, axis=0)
        legal = floor[next_players] & ~jnp.any(next_players[:, None] == boxes, axis=1)
        open_ = legal & ~known & (depth + 1 < levels) & (count < MAX_VISITED)
        # Directions tried before lead to visited positions, so the first open direction is the next to try.
        descend, direction = active & jnp.any(open_), jnp.argmax(open_)

        player, boxes, pull = next_players[direction], boxes_next[direction], pulls[direction]
        pulled = jnp.where(jnp.any(pull), jnp.argmax(pull), last)
        swaps = swaps + (pulled != last)
        displacement = jnp.sum(distance[boxes, targets])
        hidden = jnp.any(targets == player) | jnp.any(boxes[:, None] == targets)
        score = jnp.where(hidden, 0, swaps * displacement)
        position = jnp.stack([player, boxes[0], boxes[1], pulled, swaps]).astype(jnp.int32)
        here = jnp.arange(levels)[:, None] == depth + 1
        result = jnp.stack([score, displacement, player, boxes[0], boxes[1]]).astype(jnp.int32)
        depth = jnp.where(descend, depth + 1, depth - 1)
        return active & (depth >= 0), (
            depth,
            jnp.where(descend & here, position, stack),
            count + descend,
            visited.at[jnp.where(descend, count, MAX_VISITED)].set(next_ids[direction], mode="drop"),
            jnp.where(descend & (score > best[0]), result, best),
        )

    @on_rows
    def search(wanted, stack, visited, best, given):
        none = jnp.zeros(len(wanted), jnp.int32)
        return while_active(jax.vmap(visit), wanted, (none, stack, none + 1, visited, best), given)[-1]

    root = jnp.concatenate([start.player[None], start.boxes, jnp.array([-1, 0], jnp.int32)])
    stack = jnp.zeros((levels, 5), jnp.int32).at[0].set(root)
    visited = jnp.full(MAX_VISITED, -1, jnp.int32).at[0].set(position_id(start.player, start.boxes))
    best = jnp.concatenate([jnp.zeros(2, jnp.int32), root[:3]])
    best = search(wanted, stack, visited, best, (floor, start.targets))
    return start._replace(player=best[2], boxes=best[3:5], displacement=best[1])


def _walk(key: Key[Array, ""], grid: _Grid, placed: Placed) -> Int[Array, ""]:
    """Walks the player away from its cell after the reverse play; returns its new cell."""
    uniforms = jax.random.uniform(key, (4, 4))
    cells = jnp.arange(grid.size + 1)
    free = jnp.append(placed.floor, False) & ~jnp.any(cells == placed.boxes[:, None], axis=0)
    walking = uniforms[3, 3] < jnp.where(placed.displacement == 1, 0.8, 0.5)
    go_on = uniforms[3] < 0.5
    player = placed.player
    for step in range(3):
        free &= cells != player
        ahead = jnp.asarray(grid.ahead)[player]
        walking &= jnp.any(free[ahead])
        choice = jnp.argmax(jnp.where(free[ahead], uniforms[step], -1.0))
        player = jnp.where(walking, ahead[choice], player)
        walking &= go_on[step]
    return player
