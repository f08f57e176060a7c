"""TextCraft: the goal, what is carried, and the commands."""

import re
from collections import Counter

from agentrl_jax.services.scenes.reading import Entry, lines, listed
from envs_jax.scenes import Scene, text_scene

_GOAL = re.compile(r"^Goal: craft ([^\n]+)", re.MULTILINE)
_COMMAND = re.compile(r"^craft ([^\n]+)$", re.MULTILINE)
_GOT = re.compile(r"^Got ([0-9]{1,18}) ([^\n]+)", re.MULTILINE)
_CRAFTED = re.compile(r"^Crafted ([0-9]{1,18}) ([^\n]+)", re.MULTILINE)
_CARRIED = re.compile(r"\[([^\[\]\n]{1,200})\] \(([0-9]{1,18})\)")
_COUNTED = re.compile(r"([0-9]{1,18}) ([^,\n]+)")


class Reader:
    """Reads goal and commands in the first text that names a goal, and counts by the answers what is carried."""

    def __init__(self) -> None:
        self._carried = Counter[str]()
        self._goal = ""
        self._commands: list[Entry] = []
        self._started = False

    def read(self, action: str, text: str) -> Scene | None:
        """As `TextReader.read`."""
        if self._started:
            self._count(action, text)
        elif goal := _GOAL.search(text):
            self._started, self._goal = True, goal[1].strip().removesuffix(".")
            commands = (command.partition(" using ") for command in _COMMAND.findall(text))
            self._commands = [(f"craft {made}", taken) for made, _, taken in commands if taken]
            text = ""
        else:
            return None
        lists = [
            *listed("Goal", [(self._goal, "crafted" if self._carried[_name(self._goal)] else "")]),
            *listed("Inventory", ((name, f"{count:,}") for name, count in self._carried.items()), "nothing yet"),
            *listed("Commands", self._commands),
        ]
        return text_scene(lines(text), lists)

    def _count(self, action: str, answer: str) -> None:
        if answer.lstrip().startswith("Inventory:"):
            self._carried = Counter({_name(name): int(count) for name, count in _CARRIED.findall(answer)})
        elif got := _GOT.search(answer):
            self._carried[_name(got[2])] += int(got[1])
        elif crafted := _CRAFTED.search(answer):
            for count, name in _COUNTED.findall(action.partition(" using ")[2]):
                self._carried[_name(name)] -= int(count)
            self._carried[_name(crafted[2])] += int(crafted[1])
            self._carried = +self._carried


def _name(text: str) -> str:
    """The name of a thing, also of its identifier, such as minecraft:oak_planks."""
    return text.strip().removeprefix("minecraft:").replace("_", " ")
