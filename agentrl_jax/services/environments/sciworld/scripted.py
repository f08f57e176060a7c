"""Scripted policies of ScienceWorld, and the commands that the agent is told about."""

import random
import re
import threading

from agentrl_jax.services.environments.common import PlannedPolicy
from agentrl_jax.services.environments.sciworld.pool import Pool

TEMPLATES: dict[str, str] = {
    "open OBJ": "opens a container or a door",
    "close OBJ": "closes it again",
    "activate OBJ": "turns a device on",
    "deactivate OBJ": "turns it off",
    "connect OBJ to OBJ": "joins two electrical parts",
    "disconnect OBJ": "takes an electrical part off whatever it is joined to",
    "use OBJ on OBJ": "applies a tool to a thing; `use OBJ` where it needs none",
    "look around": "describes the room you are in",
    "look at OBJ": "describes a thing",
    "look in OBJ": "lists what a container holds",
    "read OBJ": "reads what is written on a note or in a book",
    "move OBJ to OBJ": "puts a thing into a container",
    "pick up OBJ": "takes a thing into your inventory",
    "put down OBJ": "leaves a thing of your inventory in the room",
    "pour OBJ into OBJ": "empties a liquid into a container",
    "dunk OBJ into OBJ": "dips a container into a liquid",
    "mix OBJ": "lets the contents of a container react",
    "go to LOC": "walks into a neighboring room, through an open door",
    "eat OBJ": "eats it",
    "flush OBJ": "flushes a toilet",
    "focus on OBJ": "declares a thing to be the one that the task asks for; the wrong one loses the task at once",
    "wait": "lets ten ticks of time pass",
    "wait1": "lets one tick pass",
    "task": "repeats what you have to do",
    "inventory": "lists what you carry",
}
"""Commands and what they do. OBJ is an object, LOC a location."""

_THING = re.compile(
    r"\b(?:an?|the) (?:substance called )?([a-z0-9 -]{1,100}?)(?= door is| is| \(|[.,:\n]|$)", re.IGNORECASE
)
_DOOR = "door to the "
_CHOICE = re.compile(r"^([0-9]+):\t", re.MULTILINE)

_GOLD_POOL = Pool(idle=1, heap=512)  # a gold-path search exceeds the usual heap
_SEARCHES = threading.BoundedSemaphore(4)
"""Gold-path searches at a time, each in a process with a large heap."""


class Oracle(PlannedPolicy):
    """Plays the simulator's own gold path, which is not always the shortest; `look around` after its end.

    Its search takes 0.1 to 7 s. Some paths end without the full score, such as changes of state that take more than
    100 moves: 3 of 200 items tried over all tasks.
    """

    def __init__(self, task: str, variation: int, pool: Pool = _GOLD_POOL):
        """Asks a simulator of the pool for the path of a variation; errors as in `Pool.take` and `Simulator.ask`."""
        with _SEARCHES:
            simulator = pool.take()
            try:
                simulator.ask("load", task, variation, "", True)  # without simplifications, with a gold path
                super().__init__(simulator.ask("getGoldActionSequence"), "look around")
            finally:
                pool.give(simulator)


class Random:
    """Picks a template uniformly, and for each OBJ and LOC in it an object or place named in an observation.

    Objects are the words after an article in any observation so far, places the targets of doors. A numbered question
    is answered with one of its numbers. Few episodes survive its `focus on`.
    """

    def __init__(self, seed: int):
        self._rng = random.Random(seed)
        self._things: dict[str, None] = {"agent": None}
        self._places: dict[str, None] = {"hallway": None}

    def act(self, observation: str) -> str:
        """A random action."""
        if choices := _CHOICE.findall(observation):
            return self._rng.choice(choices)
        for thing in _THING.findall(observation):
            self._things[thing.replace(_DOOR, "door to ")] = None
            if thing.startswith(_DOOR):
                self._places[thing.removeprefix(_DOOR)] = None
        known = {"OBJ": list(self._things), "LOC": list(self._places)}
        words = self._rng.choice(list(TEMPLATES)).split()
        return " ".join(self._rng.choice(known[word]) if word in known else word for word in words)
