"""ScienceWorld: the task, the room as it was last seen, its exits, what is carried, and the rooms seen so far."""

import re

from agentrl_jax.services.scenes.reading import lines, listed
from envs_jax.scenes import Scene, text_scene

_TASK = re.compile(r"^(?:Task Description:[ \t]*\n?)?Your task is to ([^\n]+)", re.MULTILINE)
_ROOM = re.compile(
    r"(?:This room is called|This outside location is called) the ([^\n.]{1,100})\. (?:In it, you see|Here you see):"
    r"[ \t]*\n((?:\t[^\n]*(?:\n|\Z))*)(?:You also see:[ \t]*\n((?:\t[^\n]*(?:\n|\Z))*))?"
)
_EXIT = re.compile(r"^\tA door to the ([^\n\t(]{1,100}?) \(that is (open|closed)\)", re.MULTILINE)
_ENTERED = re.compile(r"^You move to the ([^\n.]{1,100})\.", re.MULTILINE)
_MOVED = re.compile(r"^You move the ([^\n]{1,200}) to the ([^\n.]{1,100})\.", re.MULTILINE)
_CARRIED = re.compile(r"^In your inventory, you see:[ \t]*\n((?:\t[^\n]*(?:\n|\Z))*)", re.MULTILINE)
_FOCUS = re.compile(r"^You focus on the ([^\n]{1,200}?)\.", re.MULTILINE)
_DOOR = re.compile(r"(open|close)(?: the)? door to(?: the)? ([^\n]+)")
_DOOR_MOVED = re.compile(r"^The door is now (open|closed)", re.MULTILINE)
_ARTICLE = re.compile(r"^(?:a|an|the) ")


class Reader:
    """Keeps what was read of the house."""

    def __init__(self) -> None:
        self._task = self._focus = self._here = ""
        self._things: dict[str, list[str]] = {}
        """By room, as last seen."""
        self._exits: dict[str, dict[str, str]] = {}
        """By room, the state of the door to each other room."""
        self._rooms: dict[str, None] = {}
        """In the order in which they were first entered."""
        self._carried: list[str] = []
        self._started = False

    def read(self, action: str, text: str) -> Scene | None:
        """As `TextReader.read`."""
        task, focus = _TASK.search(text), _FOCUS.search(text)
        self._task = self._task or (task[1] if task else "")
        self._focus = focus[1] if focus else self._focus
        seen = self._look(text)
        self._move(action, text)
        if not self._here:
            return None
        self._rooms.setdefault(self._here)
        lists = [
            *listed("Task", [(self._task, "")] if self._task else []),
            *listed(
                f"Here: {self._here}",
                ((thing, "") for thing in self._things.get(self._here, ())),
                "not looked around yet" if self._here not in self._things else "nothing",
            ),
            *listed("Exits", self._exits.get(self._here, {}).items()),
            *listed("Inventory", ((thing, "") for thing in self._carried), "nothing known"),
            *listed("Focus", [(self._focus, "")] if self._focus else []),
            *listed("Rooms", ((room, "here" if room == self._here else "") for room in self._rooms)),
        ]
        said = lines(text) if self._started and not seen else ()
        self._started = True
        return text_scene(said, lists)

    def _look(self, text: str) -> bool:
        """Learns what a text says of rooms and of what is carried; whether it shows a room."""
        seen = False
        for name, things, exits in _ROOM.findall(text):
            self._here, seen = name, True
            self._things[name] = [line.strip() for line in things.splitlines() if line.strip() != "the agent"]
            self._exits[name] = dict(_EXIT.findall(exits))
        if carried := _CARRIED.search(text):
            self._carried = [line.strip() for line in carried[1].splitlines()]
        return seen

    def _move(self, action: str, text: str) -> None:
        """Learns what an action has moved: the agent, a thing or a door."""
        if entered := _ENTERED.search(text):
            self._here = entered[1]
        if moved := _MOVED.search(text):
            known = next((thing for thing in self._carried if _same(thing, moved[1])), None)
            if moved[2] == "inventory" and known is None:
                self._carried.append(moved[1])
            elif moved[2] != "inventory" and known is not None:
                self._carried.remove(known)
        door, now = _DOOR.fullmatch(action), _DOOR_MOVED.search(text)
        if door and now and door[2] in self._exits.get(self._here, {}):
            self._exits[self._here][door[2]] = now[1]


def _same(thing: str, name: str) -> bool:
    """Whether a line of an inventory, such as `a thermometer, currently reading ...`, is of the thing of this name."""
    words = _ARTICLE.sub("", re.split(r", | \(", thing, maxsplit=1)[0])
    return words == name or words.endswith(f" {name}") or name.endswith(f" {words}")
