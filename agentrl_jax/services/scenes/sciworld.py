"""ScienceWorld: the task, the room as it was last seen, its exits, what is carried, and the rooms seen so far."""

import dataclasses
import re

from agentrl_jax.services.scenes import Seen
from agentrl_jax.services.scenes.reading import first_match, last_answer, last_match, listed
from envs_jax.scenes import Scene, text_scene

_TASK = re.compile(r"^(?:Task Description:\s*)?Your task is to ([^\n]+)", re.MULTILINE)
_ROOM = re.compile(
    r"(?:This room is called|This outside location is called) the ([^\n.]+)\. (?:In it, you see|Here you see):[ \t]*\n"
    r"((?:\t[^\n]*(?:\n|\Z))*)(?:You also see:[ \t]*\n((?:\t[^\n]*(?:\n|\Z))*))?"
)
_EXIT = re.compile(r"\tA door to the ([^\n(]+?) \(that is (open|closed)\)")
_MOVED = re.compile(r"^You move to the ([^\n.]+)\.", re.MULTILINE)
_TAKEN = re.compile(r"^You move the ([^\n]+) to the inventory\.", re.MULTILINE)
_CARRIED = re.compile(r"^In your inventory, you see:[ \t]*\n((?:\t[^\n]*(?:\n|\Z))*)", re.MULTILINE)
_FOCUS = re.compile(r"^You focus on the ([^\n]+?)\.", re.MULTILINE)
_DOOR = re.compile(r"(open|close)(?: the)? door to(?: the)? ([^\n]+)")
_DOOR_MOVED = re.compile(r"^The door is now (open|closed)", re.MULTILINE)


@dataclasses.dataclass
class _House:
    """What is known of the house."""

    here: str = ""
    things: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """By room, as last seen."""
    exits: dict[str, dict[str, str]] = dataclasses.field(default_factory=dict)
    """By room, the state of the door to each other room."""
    carried: list[str] = dataclasses.field(default_factory=list)
    rooms: dict[str, None] = dataclasses.field(default_factory=dict)
    """In the order in which they were first entered."""

    def read(self, action: str, text: str) -> None:
        """Learns from an answer; the first observation answers the empty action."""
        for name, things, exits in _ROOM.findall(text):
            self.here = name
            self.things[name] = [line.strip() for line in things.splitlines() if line.strip() != "the agent"]
            self.exits[name] = dict(_EXIT.findall(exits))
        if moved := _MOVED.search(text):
            self.here = moved[1]
        if self.here:
            self.rooms.setdefault(self.here)
        if taken := _TAKEN.search(text):
            self.carried.append(taken[1])
        if carried := _CARRIED.search(text):
            self.carried = [line.strip() for line in carried[1].splitlines()]
        door, now = _DOOR.fullmatch(action), _DOOR_MOVED.search(text)
        if door and now and door[2] in self.exits.get(self.here, {}):
            self.exits[self.here][door[2]] = now[1]


def sciworld(seen: Seen) -> Scene | None:
    """The scene; None if no room has been read."""
    house = _House()
    for action, text in zip(("", *seen.actions), seen.texts, strict=True):
        house.read(action, text)
    if not house.here:
        return None
    task, focus = first_match(_TASK, seen.texts), last_match(_FOCUS, seen.texts)
    known = house.things.get(house.here)
    lists = [
        *listed("Task", [(task[1], "")] if task else []),
        *listed(f"Here: {house.here}", ((thing, "") for thing in known or ()), "not looked around yet"),
        *listed("Exits", house.exits.get(house.here, {}).items()),
        *listed("Inventory", ((thing, "") for thing in house.carried), "nothing known"),
        *listed("Focus", [(focus[1], "")] if focus else []),
        *listed("Rooms", ((room, "here" if room == house.here else "") for room in house.rooms)),
    ]
    return text_scene([] if _ROOM.search(seen.texts[-1]) else last_answer(seen.texts), lists)
