"""The maze of LMRL-Gym (Abdulhai et al. 2023, arXiv 2311.18232) as AgentGym serves it (arXiv 2406.04151)."""

import functools
import re
from collections import deque

from agentrl_jax.errors import BadValue
from agentrl_jax.services.environment import ChosenItems, ItemError, Service, StepResult
from agentrl_jax.services.environments.common import LmrlGame, UniformPolicy
from agentrl_jax.services.environments.maze.protocol import READ

Cell = tuple[int, int]
"""A row, counted from the top, and a column, counted from the left, both from 0."""

ROWS = (
    "1111111111111",
    "1000001000001",
    "1110111110111",
    "1110111110111",
    "1110111110111",
    "1110000000111",
    "1111110111111",
    "1111110111111",
    "1111110111111",
    "1111111111111",
)
"""The maze; 1 is a wall."""

GOAL: Cell = (8, 6)

STARTS: tuple[Cell, ...] = (
    *((1, column) for column in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11)),
    *((row, 3) for row in (2, 3, 4, 5)),
    *((5, column) for column in (4, 5, 6)),
    *((row, 6) for row in (6, 7)),
    *((5, column) for column in (7, 8, 9)),
    *((row, 9) for row in (4, 3, 2)),
)
"""Start of item 0, 1, ...: every free cell except the goal, once."""

MOVES: dict[str, Cell] = {"move left": (0, -1), "move right": (0, 1), "move up": (-1, 0), "move down": (1, 0)}
"""Change of row and column of each move."""

LIMIT = 50
"""Moves that are carried out; the next one fails."""

_SIDES: dict[str, Cell] = {"to your right": (0, 1), "to your left": (0, -1), "above you": (-1, 0), "below you": (1, 0)}
_POSITION = re.compile(r"Your current position is at position ([0-9]+), ([0-9]+)\.")


def is_free(cell: Cell) -> bool:
    """Whether a cell inside the outer walls is free and can be entered."""
    return ROWS[cell[0]][cell[1]] == "0"


def describe(cell: Cell) -> str:
    """The observation in a cell."""
    walls = [side for side, step in _SIDES.items() if not is_free(_after(cell, step))]
    if not walls:
        seen = "There are no walls near you."
    elif len(walls) == 1:
        seen = f"There is a wall {walls[0]}."
    else:
        seen = f"There are walls {', '.join(walls)}."
    own = f"Your current position is at position {cell[0]}, {cell[1]}."
    return f"The goal is at position {GOAL[0]}, {GOAL[1]}. {own} {seen}"


def _after(cell: Cell, step: Cell) -> Cell:
    return cell[0] + step[0], cell[1] + step[1]


class Maze(LmrlGame):
    """One episode: walk from the item's start to the goal.

    Items 0 to 24 are the starts of `STARTS`. An action must match one of `MOVES` exactly; anything else, or a move into
    a wall, leaves the agent where it is and counts as a move. Reaching the goal gives reward 1 and the text
    "Success\\n"; every other move gives reward 0. After 50 moves without reaching the goal, the next move is not
    carried out: its text is "Failure\\n" and its reward -1. Both end the episode.

    Differences from AgentGym's server: it counts 25 games, the last of which starts at the goal and fails without a
    message, and it accepts negative numbers, which count games from the end. Here all of these are refused as invalid;
    with `upstream` the refusal of 25 is empty, as there.
    """

    def __init__(self, *, upstream: bool = False):
        super().__init__()
        self._upstream = upstream
        self._cell, self._moves = STARTS[0], 0

    def reset(self, item: int) -> StepResult:
        """Moves the agent to the item's start; raises `ItemError` unless the item is one of 0 to 24."""
        if not 0 <= item < len(STARTS):
            silent = self._upstream and item == len(STARTS)
            raise ItemError("" if silent else f"The game {item} is not valid.", item)
        self._cell, self._moves = STARTS[item], 0
        return self._start(describe(self._cell), maze_name="double_t_maze")

    def step(self, action: str) -> StepResult:
        """Makes a move, if the action is valid and there is no wall."""
        if self._moves == LIMIT:
            return self._answer("Failure\n", reward=-1.0, done=True)
        self._moves += 1
        target = _after(self._cell, MOVES.get(action, (0, 0)))
        if is_free(target):
            self._cell = target
        if self._cell == GOAL:
            return self._answer("Success\n", reward=1.0, done=True)
        return self._answer(describe(self._cell))


@functools.cache
def distances() -> dict[Cell, int]:
    """The fewest moves from every free cell to the goal, by breadth-first search."""
    found = {GOAL: 0}
    queue = deque([GOAL])
    while queue:
        cell = queue.popleft()
        for step in MOVES.values():
            near = _after(cell, step)
            if is_free(near) and near not in found:
                found[near] = found[cell] + 1
                queue.append(near)
    return found


class Oracle:
    """Follows a shortest path from the position given in the observation."""

    def act(self, observation: str) -> str:
        """A move towards the goal; `ValueError` if the goal cannot be reached from the observed position."""
        positions = _POSITION.findall(observation)
        cell = (int(positions[-1][0]), int(positions[-1][1])) if positions else None
        moves = distances()
        if cell is None or not moves.get(cell):
            raise BadValue.of("observation", observation, "expected one that tells a position on the way to the goal")
        return next(name for name, step in MOVES.items() if moves.get(_after(cell, step), moves[cell]) < moves[cell])


INSTRUCTION = f"""You walk through a maze to a goal.
Positions are written as row, column. Rows are counted from the top and columns from the left, so row 1 lies above row \
2 and column 1 lies to the left of column 2. Every observation gives the goal's position and yours, and says on which \
sides of you a wall stands; the other sides are open.
There are four actions, one a turn:
move up (the row becomes one less)
move down (the row becomes one more)
move left (the column becomes one less)
move right (the column becomes one more)
A move into a wall, or anything that is not one of the four, leaves you where you are and still counts. You have \
{LIMIT} moves. The walls may force you to walk away from the goal for a while.

An example, in another maze:
Observation: The goal is at position 3, 2. Your current position is at position 2, 1. There are walls to your left, \
below you.
Thought: The goal is one row down and one column to the right. There is a wall below me, so I go right first.
Action: move right
Observation: The goal is at position 3, 2. Your current position is at position 2, 2. There are walls to your right, \
above you.
Thought: I am in the goal's column now, and nothing is below me.
Action: move down
Observation: Success

Write your thoughts after Thought: and then a single action after Action:."""

SERVICE = Service(
    name="maze",
    make=lambda upstream: Maze(upstream=upstream),
    items=len(STARTS),
    instruction=INSTRUCTION,
    read=READ,
    turns=LIMIT,
    solved=lambda answer: answer.reward == 1,
    success_rule="the last reward is 1, which is paid for reaching the goal",
    oracle=lambda item: Oracle(),
    random=lambda item, seed: UniformPolicy(list(MOVES), seed),
    content=lambda item: f"from {STARTS[item]}",
    views=("detail",),
    facts={"available_actions": list(MOVES)},
    score_range=(-1.0, 1.0),
    floor=0.25,
    chosen=ChosenItems(lambda: range(len(STARTS)), "all 25 starts"),
)
