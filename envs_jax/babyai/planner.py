"""Shortest paths over (cell, heading) among the cells in view, with the order of ties of AgentGym's planner.

AgentGym searches breadth first, tries forward, left and right in this order, and puts a node into the queue once for
each way to it. So the nodes of one depth are queued in the lexicographic order of the action sequences that lead to
them. The search stops at the first goal in the queue, which is the one with the lexicographically smallest shortest
path; but the predecessor of a node is the last that found it, so that the path returned is the lexicographically
largest shortest path to that goal.

Nodes are bits, so that one step of the search is a few operations on integers: a set of cells is a pair of u32, the bit
of a cell is 8 times its row plus its column, for eight rows (0 is behind the agent, 1 its own) and eight columns (3 is
its own). A set of nodes is a pair for each heading relative to the agent's: ahead, right, back, left.

Shapes: `B` rows of a batch, `D` = `MAX_DEPTH` + 1 depths.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Int8, Int32, UInt32

from envs_jax.babyai.codes import BOX, COLORS, FORWARD, KEY, LEFT, OBJECT, RIGHT, WALL
from envs_jax.babyai.view import MIDDLE, SIZE
from envs_jax.batching import in_turns, on_rows

ROWS = SIZE + 1
MAX_DEPTH = 63
"""Longest path that is searched. None is longer: a shortest way over cells has at most 60 moves and turns, by
enumeration of all ways in each of the four ranges of `free_cells`, and two turns face whatever is beside its end."""

_STEPS_PER_TEST = 2
"""Steps of the flood between two tests of whether it still grows, so that there are fewer tests."""

ROWS_AT_ONCE = 256
"""On a CPU, rows whose paths are searched at once: the layers of more rows do not fit into its second cache."""

Cells = tuple[UInt32[Array, "*B"], ...]
Nodes = tuple[Cells, ...]

_NOT_FIRST_COLUMN, _NOT_LAST_COLUMN = np.uint32(0xFEFEFEFE), np.uint32(0x7F7F7F7F)


def free_cells(view: Int8[Array, "7 7"], heading: Int[Array, ""]) -> UInt32[Array, "2"]:
    """Returns the cells that paths may enter: in range, and not seen to hold a wall, key, ball or box.

    The range is the view; where it extends towards smaller coordinates of the grid, it has one more row or column.
    """
    cells = view.at[SIZE - 1, MIDDLE].set(0)
    solid = (cells == WALL) | (cells >= OBJECT + KEY * COLORS) & (cells < OBJECT + (BOX + 1) * COLORS)
    bits = jnp.sum(solid.astype(jnp.uint32) << np.arange(SIZE, dtype=np.uint32), axis=1, dtype=jnp.uint32)[::-1]
    row_behind, extra_column = heading <= 1, (heading == 1) | (heading == 2)
    columns = np.uint32((1 << SIZE) - 1) | extra_column.astype(jnp.uint32) << SIZE
    rows = jnp.concatenate([jnp.where(row_behind, columns, 0)[None], columns & ~bits])
    shifts = 8 * np.arange(4, dtype=np.uint32)
    return jnp.sum(rows.reshape(2, 4) << shifts, axis=1, dtype=jnp.uint32)


def _ahead(cells: Cells) -> Cells:
    low, high = cells
    return low << 8, high << 8 | low >> 24


def _right(cells: Cells) -> Cells:
    return tuple(word << 1 & _NOT_FIRST_COLUMN for word in cells)


def _back(cells: Cells) -> Cells:
    low, high = cells
    return low >> 8 | high << 24, high >> 8


def _left(cells: Cells) -> Cells:
    return tuple(word >> 1 & _NOT_LAST_COLUMN for word in cells)


def _step(nodes: Nodes) -> Nodes:
    """Moves every node one cell in its heading."""
    return tuple(move(cells) for move, cells in zip((_ahead, _right, _back, _left), nodes))


def _step_back(nodes: Nodes) -> Nodes:
    return tuple(move(cells) for move, cells in zip((_back, _left, _ahead, _right), nodes))


def _turn_left(nodes: Nodes) -> Nodes:
    return (*nodes[1:], nodes[0])


def _turn_right(nodes: Nodes) -> Nodes:
    return (nodes[3], *nodes[:3])


def _map(function: Callable[..., jax.Array], *nodes: Nodes) -> Nodes:
    return jax.tree.map(function, *nodes)


def _or(a: Nodes, b: Nodes) -> Nodes:
    return _map(jnp.bitwise_or, a, b)


def _and(a: Nodes, b: Nodes) -> Nodes:
    return _map(jnp.bitwise_and, a, b)


def _exists(nodes: Nodes) -> Bool[Array, " B"]:
    found = jnp.bool_(False)
    for word in jax.tree.leaves(nodes):
        found |= word != 0
    return found


def _agent(rows: int) -> Nodes:
    nothing, own = jnp.zeros(rows, jnp.uint32), jnp.full(rows, 1 << 8 + MIDDLE, jnp.uint32)
    empty = nothing, nothing
    return (own, nothing), empty, empty, empty


def _grow(frontier: Nodes, found: Nodes, free: Cells) -> Nodes:
    entered = tuple(tuple(word & allowed for word, allowed in zip(cells, free)) for cells in _step(frontier))
    near = _or(entered, _or(_turn_left(frontier), _turn_right(frontier)))
    return _map(lambda new, old: new & ~old, near, found)


def _near(cells: Cells) -> Cells:
    """Returns the cells beside a set of cells."""
    return tuple(a | b | c | d for a, b, c, d in zip(*(move(cells) for move in (_ahead, _right, _back, _left))))


@on_rows
def reachable(free: UInt32[Array, "B 2"]) -> tuple[UInt32[Array, "B 2"], UInt32[Array, "B 2"]]:
    """Returns the cells that some path leads to face, and those that a path leads onto."""
    allowed = free[:, 0], free[:, 1]

    # Turning is always possible, so that a cell is reached in all headings or in none.
    def spread(carry: tuple[Cells, Bool[Array, ""]]) -> tuple[Cells, Bool[Array, ""]]:
        before = reached = carry[0]
        for _ in range(_STEPS_PER_TEST):
            reached = tuple(old | near & inside for old, near, inside in zip(reached, _near(reached), allowed))
        return reached, jnp.any((reached[0] != before[0]) | (reached[1] != before[1]))

    own = _agent(free.shape[0])[0]
    reached = jax.lax.while_loop(lambda carry: carry[1], spread, (own, jnp.bool_(True)))[0]
    return jnp.stack(_near(reached), axis=-1), jnp.stack(reached, axis=-1)


@on_rows
def path(
    free: UInt32[Array, "B 2"], target: UInt32[Array, "B 2"], arrive: Bool[Array, " B"]
) -> tuple[Int8[Array, "B D"], Int32[Array, " B"]]:
    """Returns the primitive actions of AgentGym's planner to a target, and their number; 0 without a path.

    The target is a set of one cell, or empty. With `arrive`, the path ends on it, else where the agent faces it.
    """
    searches = jnp.any(target != 0, axis=1)

    def some_at_once(*given: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = len(searches)
        nothing = jnp.zeros((rows, MAX_DEPTH + 1), jnp.int8), jnp.zeros(rows, jnp.int32)
        return in_turns(lambda _, __, given: _paths(*given), searches, nothing, given, ROWS_AT_ONCE)

    if len(searches) <= ROWS_AT_ONCE:
        return _paths(free, target, arrive)
    return jax.lax.platform_dependent(free, target, arrive, cpu=some_at_once, default=_paths)


def _paths(
    free: UInt32[Array, "B 2"], target: UInt32[Array, "B 2"], arrive: Bool[Array, " B"]
) -> tuple[Int8[Array, "B D"], Int32[Array, " B"]]:
    """Returns what `path` does."""
    allowed, cell = (free[:, 0], free[:, 1]), (target[:, 0], target[:, 1])
    on_it = (cell, cell, cell, cell)
    goals = _map(lambda there, before: jnp.where(arrive, there, before), on_it, _step_back(on_it))
    # Rows without a target search nothing.
    first = _map(lambda word: jnp.where(_exists(goals), word, 0), _agent(free.shape[0]))

    def grow(carry: tuple) -> tuple:
        layers, found, frontier, last, depth, level = carry
        frontier = _grow(frontier, found, allowed)
        hit = _and(frontier, goals)
        ended = _exists(hit)
        layers, found, level = _set(layers, level + 1, frontier), _or(found, frontier), level + 1
        # A row whose goal has been found ends here.
        frontier = _map(lambda word: jnp.where(ended, 0, word), frontier)
        return layers, found, frontier, _or(last, hit), jnp.where(ended, level, depth), level

    def going(carry: tuple) -> Bool[Array, ""]:
        return jnp.any(_exists(carry[2])) & (carry[-1] < MAX_DEPTH)

    layers = _set(_map(lambda word: jnp.zeros((MAX_DEPTH + 1, *word.shape), jnp.uint32), first), 0, first)
    last, depth = _and(first, goals), jnp.zeros(free.shape[:1], jnp.int32)
    frontier = _map(lambda word: jnp.where(_exists(last), 0, word), first)
    layers, _, _, last, depth, _ = jax.lax.while_loop(going, grow, (layers, first, frontier, last, depth, jnp.int32(0)))
    several = sum(jax.lax.population_count(word) for word in jax.tree.leaves(last)) > 1
    depth_of_choice = jnp.where(several, depth, 0)
    chosen, _ = _walk(_between(layers, last, depth_of_choice), depth_of_choice, last=False)
    goal = _map(lambda a, b: jnp.where(several, a, b), chosen, last)
    return _walk(_between(layers, goal, depth), depth, last=True)[1].T, depth


def _set(layers: Nodes, depth: Int[Array, ""] | int, nodes: Nodes) -> Nodes:
    return _map(lambda stored, word: stored.at[depth].set(word), layers, nodes)


def _at(layers: Nodes, depth: Int[Array, ""]) -> Nodes:
    return _map(lambda stored: stored[depth], layers)


def _between(layers: Nodes, last: Nodes, depth: Int32[Array, " B"]) -> Nodes:
    """Returns the nodes at each depth, [D, B], that are on a shortest path to the last ones, which are at a depth."""

    def shrink(carry: tuple) -> tuple:
        kept, ahead, level = carry
        before = _or(_step_back(ahead), _or(_turn_left(ahead), _turn_right(ahead)))
        back = _and(_at(layers, level), before)
        back = _map(lambda a, b: jnp.where(level == depth, a, b), last, back)
        return _set(kept, level, back), back, level - 1

    first = _map(jnp.zeros_like, layers), _map(jnp.zeros_like, last), jnp.max(depth)
    return jax.lax.while_loop(lambda carry: carry[2] >= 0, shrink, first)[0]


def _walk(kept: Nodes, depth: Int32[Array, " B"], *, last: bool) -> tuple[Nodes, Int8[Array, "D B"]]:
    """Walks from the agent over nodes of each depth, taking the first or last possible action.

    Returns the node at the end and the actions.
    """
    rows = depth.shape[0]

    def step(carry: tuple) -> tuple:
        node, actions, level = carry
        options = ((FORWARD, _step(node)), (LEFT, _turn_left(node)), (RIGHT, _turn_right(node)))
        ahead = _at(kept, level + 1)
        action, chosen = jnp.zeros(rows, jnp.int8), node
        for name, option in options if last else options[::-1]:
            possible = _exists(_and(option, ahead)) & (level < depth)
            action = jnp.where(possible, name, action).astype(jnp.int8)
            chosen = _map(lambda a, b, p=possible: jnp.where(p, a, b), option, chosen)
        return chosen, actions.at[level].set(action), level + 1

    first = _agent(rows), jnp.zeros((MAX_DEPTH + 1, rows), jnp.int8), jnp.int32(0)
    node, actions, _ = jax.lax.while_loop(lambda carry: carry[2] < jnp.max(depth), step, first)
    return node, actions
