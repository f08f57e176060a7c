"""The host side of a RAGEN-like agent loop: Sokoban in plain Python, its prompt as chat messages, a response parser.

Used by the loops that `torch_rollout.py` measures; needs only the standard library.
"""

import re
from typing import Any

MOVES = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}
RESPONSE = re.compile(r"<think>(.*?)</think>\s*<answer>(.*?)</answer>", re.DOTALL)
SYSTEM = "You solve tasks step by step and answer in the requested format."


class Sokoban:
    """One board; a level is a text of the seven symbols # _ O √ X P S."""

    def __init__(self, level: str):
        """Starts a level."""
        rows = level.split("\n")
        cells = {(i, j): symbol for i, row in enumerate(rows) for j, symbol in enumerate(row)}
        self.shape = len(rows), len(rows[0])
        self.walls = {cell for cell, symbol in cells.items() if symbol == "#"}
        self.targets = {cell for cell, symbol in cells.items() if symbol in "O√S"}
        self.boxes = {cell for cell, symbol in cells.items() if symbol in "X√"}
        self.player = next(cell for cell, symbol in cells.items() if symbol in "PS")

    def step(self, action: str) -> tuple[float, bool]:
        """Takes one action; returns its reward and whether the level is solved."""
        down, right = MOVES[action]
        ahead = self.player[0] + down, self.player[1] + right
        behind = ahead[0] + down, ahead[1] + right
        covered = len(self.boxes & self.targets)
        if ahead in self.boxes and behind not in self.walls | self.boxes:
            self.boxes = self.boxes - {ahead} | {behind}
        if ahead not in self.walls | self.boxes:
            self.player = ahead
        change = len(self.boxes & self.targets) - covered
        solved = self.boxes == self.targets
        return -0.1 + change + 10.0 * solved, solved

    def render(self) -> str:
        """Returns the board as text."""
        return "\n".join("".join(self._symbol((i, j)) for j in range(self.shape[1])) for i in range(self.shape[0]))

    def _symbol(self, cell: tuple[int, int]) -> str:
        if cell in self.walls:
            return "#"
        if cell == self.player:
            return "S" if cell in self.targets else "P"
        if cell in self.boxes:
            return "√" if cell in self.targets else "X"
        return "O" if cell in self.targets else "_"


class Episode:
    """A board, its conversation and the remaining action budget."""

    def __init__(self, level: str, task: dict[str, Any]):
        """Starts an episode; `task` holds `opening`, `actions` (the budget), `per_turn` and `words`."""
        self.env = Sokoban(level)
        self.task = task
        self.left = task["actions"]
        self.turn = 1
        self.done = False
        self.messages = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"{task['opening']}\n\n{self.state()}"},
        ]

    def state(self) -> str:
        """Returns the part of a message that contains the state and the response format."""
        return (
            f"Turn {self.turn}:\nState:\n{self.env.render()}\nActions left: {self.left}.\nResponse with "
            "<think> your reasoning </think><answer> your actions </answer> and nothing else, "
            f"in at most {self.task['words']} words."
        )

    def answer(self, response: str) -> str:
        """Plays a response, which continues an inserted <think>; returns the next user message."""
        match = RESPONSE.search(f"<think>{response}")
        words = [word.strip().lower() for word in match[2].split("||")] if match else []
        reward = 0.0
        for action in [word for word in words if word][: self.task["per_turn"]]:
            if action in MOVES and self.left and not self.done:
                gained, self.done = self.env.step(action)
                reward += gained
                self.left -= 1
        self.turn += 1
        self.done |= self.left == 0
        content = f"Reward:\n{reward:.1f}\n\n{self.state()}"
        self.messages += [{"role": "assistant", "content": f"<think>{response}"}, {"role": "user", "content": content}]
        return content
