"""TextCraft: the goal, what is carried, and the commands."""

import re
from collections import Counter

from agentrl_jax.services.scenes import Seen
from agentrl_jax.services.scenes.reading import first_match, last_answer, listed
from envs_jax.scenes import Scene, text_scene

_GOAL = re.compile(r"^Goal: craft ([^\n]+)", re.MULTILINE)
_COMMAND = re.compile(r"^craft ([^\n]+?) using ([^\n]+)$", re.MULTILINE)
_GOT = re.compile(r"^Got ([0-9]{1,18}) ([^\n]+)", re.MULTILINE)
_CRAFTED = re.compile(r"^Crafted ([0-9]{1,18}) ([^\n]+)", re.MULTILINE)
_CARRIED = re.compile(r"\[([^\]\n]*)\] \(([0-9]{1,18})\)")
_COUNTED = re.compile(r"([0-9]{1,18}) ([^,\n]+)")


def textcraft(seen: Seen) -> Scene | None:
    """The scene; None if no goal has been read."""
    goal = first_match(_GOAL, seen.texts)
    if goal is None:
        return None
    name, carried = goal[1].strip().removesuffix("."), inventory(seen)
    lists = [
        *listed("Goal", [(name, "crafted" if carried[_name(name)] else "")]),
        *listed("Inventory", ((name, f"{count:,}") for name, count in carried.items()), "nothing yet"),
        *listed("Commands", ((f"craft {made}", taken) for made, taken in _COMMAND.findall(goal.string))),
    ]
    return text_scene(last_answer(seen.texts), lists)


def inventory(seen: Seen) -> Counter[str]:
    """What is carried, by the answers to the actions."""
    carried = Counter[str]()
    for action, answer in seen.answers:
        if answer.lstrip().startswith("Inventory:"):
            carried = Counter({_name(name): int(count) for name, count in _CARRIED.findall(answer)})
        elif got := _GOT.search(answer):
            carried[_name(got[2])] += int(got[1])
        elif crafted := _CRAFTED.search(answer):
            carried.subtract({_name(name): int(count) for count, name in _taken(action)})
            carried[_name(crafted[2])] += int(crafted[1])
            carried = +carried
    return carried


def _taken(action: str) -> list[tuple[str, str]]:
    """Counts and names of what an action uses up; a thing that is named twice is there once, with the sum."""
    sums = Counter[str]()
    for count, name in _COUNTED.findall(action.partition(" using ")[2]):
        sums[name] += int(count)
    return [(str(count), name) for name, count in sums.items()]


def _name(text: str) -> str:
    """The name of a thing, also of its identifier, such as minecraft:oak_planks."""
    return text.strip().removeprefix("minecraft:").replace("_", " ")
