"""ScienceWorld (Wang et al. 2022, arXiv 2203.07540) as AgentGym serves it (arXiv 2406.04151).

The simulator comes from the package scienceworld and runs in a separate Java process for each instance.
"""

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import Any

from agentrl_jax.services.action_parsing import last_action, react_response
from agentrl_jax.services.environment import ChosenItems, ItemError, Service, ServiceEnvironment, StepResult
from agentrl_jax.services.environments.sciworld.pool import Pool, Simulator, find_java
from agentrl_jax.services.environments.sciworld.protocol import READ
from agentrl_jax.services.environments.sciworld.scripted import TEMPLATES, Oracle, Random

TASKS: dict[str, int] = {
    **dict.fromkeys(("boil", "melt", "freeze", "change-the-state-of-matter-of"), 30),
    "use-thermometer": 540,
    "measure-melting-point-known-substance": 436,
    "measure-melting-point-unknown-substance": 300,
    **dict.fromkeys(("power-component", "power-component-renewable-vs-nonrenewable-energy"), 20),
    "test-conductivity": 900,
    "test-conductivity-of-unknown-substances": 600,
    **dict.fromkeys(("find-living-thing", "find-non-living-thing", "find-plant", "find-animal"), 300),
    "chemistry-mix": 32,
    **dict.fromkeys(("chemistry-mix-paint-secondary-color", "chemistry-mix-paint-tertiary-color"), 36),
    "lifespan-longest-lived": 125,
    "lifespan-shortest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125,
    "identify-life-stages-1": 14,
    "identify-life-stages-2": 10,
}
"""Tasks and the number of variations of each. Items number all variations in this order. AgentGym leaves out seven of
ScienceWorld's thirty tasks: both growing tasks, and all on inclined planes and on genetics."""

_ITEMS = tuple((task, variation) for task, count in TASKS.items() for variation in range(count))
ITEMS = len(_ITEMS)

LIMIT = 100
"""Moves after which an episode still continues; one more ends it."""

SOLVED = 100.0
"""The full score."""

_POOL = Pool()


def find_item(item: int) -> tuple[str, int]:
    """Task and variation of an item; raises `ItemError` with AgentGym's message if there is no such item."""
    if not 0 <= item < ITEMS:
        raise ItemError("list index out of range", item)
    return _ITEMS[item]


def item_table() -> list[dict[str, Any]]:
    """Task and variation of every item, as served to clients."""
    return [{"item": item, "task_name": task, "var_num": number} for item, (task, number) in enumerate(_ITEMS)]


class SciWorld(ServiceEnvironment):
    """One episode: carry out a school experiment in a house of ten places.

    An item is a task and a variation of it, without simplifications, see `TASKS`. An action is any text; text that the
    simulator does not understand costs no move, and neither does looking around. `wait` counts as eleven moves, `wait1`
    as two. An ambiguous command is answered by a numbered question, which expects the bare number; anything else
    cancels it and costs a move. The score is 100 times the progress, or -100 after a wrong `focus on`; the reward is
    the change of the score. The episode ends when the task is completed or failed, and with the first move over 100.

    Differences from AgentGym's server: answers depend on item and actions alone, while there objects in the same place
    are listed in random order, and random thermometer readings differ too. Object trees keep numbering objects across
    all episodes of a process. There are no negative items, and no extra ones after a second /create. Texts that the
    server discards are not generated, which makes a step about ten times as fast. `upstream` changes nothing.
    """

    def __init__(self, pool: Pool = _POOL):
        """Starts no process: the first reset takes one from the pool. `ValueError` if Java or a package is missing."""
        find_java()
        self._pool = pool
        self._simulator: Simulator | None = None
        self._score = 0.0
        self._last: dict[str, Any] = {}

    def reset(self, item: int) -> StepResult:
        """Starts a variation with one `look around`. The text is the room alone; the task is in `info`.

        Raises `ItemError` unless the item is one of 0 to 4638, and `RuntimeError` if the simulator does not work.
        """
        task, variation = find_item(item)
        if self._simulator is not None and not self._simulator.alive:
            self.close()
        if self._simulator is None:
            self._simulator = self._pool.take()
        self._ask("load", task, variation, "", False)
        self._score = 0.0
        info = {"task_name": task, "var_num": variation, **self.task_description(), "deleted": False}
        self._last = dict(info)
        return self._play("look around", info)

    def step(self, action: str) -> StepResult:
        """Carries out a command; raises `RuntimeError` if there is no episode or the simulator fails."""
        return self._play(action.encode("utf-8", "replace").decode(), {})

    def step_visual(self, action: str) -> StepResult:
        """As `step`, with all the simulator's data in `info`; slow. Finds the action in a response itself."""
        answer = self.step(last_action(action).action or "" if "Action:" in action else action)
        shared = {"inventory": self._ask("freeActionInventory"), "moves": answer.info["moves"]}
        info = {
            "moves": shared["moves"],
            "score": answer.score,
            "reward": answer.reward,
            "look": self._ask("freeActionLook"),
            "inv": shared["inventory"],
            "taskDesc": self._ask("freeActionTaskDesc"),
            "valid": self._ask("getValidActionObjectCombinations"),
            "variationIdx": self._last["var_num"],
            "taskName": self._last["task_name"],
            "simplificationStr": "",
        }
        return dataclasses.replace(answer, info={"info": info, **self.object_tree(), **shared})

    def action_hint(self) -> dict[str, list[str]]:
        """Templates of actions, and objects that can be named now."""
        return {f"possible_{kind}": self._ask(f"getPossible{kind.title()}") for kind in ("actions", "objects")}

    def goals(self) -> dict[str, str]:
        """Subgoals, and which of them are reached."""
        return {"goals": self._ask("getGoalProgressStr")}

    def task_description(self) -> dict[str, str]:
        """The task's description."""
        return {"task_description": self._ask("getTaskDescription")}

    def object_tree(self) -> dict[str, Any]:
        """All objects with their properties, nested by containment."""
        with tempfile.TemporaryDirectory() as folder:  # the simulator returns it only through a file
            if refusal := self._ask("getObjectTree", folder):
                raise RuntimeError(f"ScienceWorld's simulator gave no object tree: {refusal}")
            return {"object_tree": json.loads(Path(folder, "objectTree.json").read_text(encoding="utf-8"))}

    def state(self) -> dict[str, Any]:
        """A short summary of the episode, with the first ten actions and objects."""
        return {
            "observation": self._ask("freeActionLook"),
            "inventory": self._ask("freeActionInventory"),
            **self.task_description(),
            "goal_progress": self._ask("getGoalProgressStr"),
            **{name: values[:10] for name, values in self.action_hint().items()},
            "current_moves": self._ask("getNumMoves"),
            "environment_info": dict(self._last),
        }

    def close(self) -> None:
        """Returns the simulator to the pool."""
        if self._simulator is not None:
            self._pool.give(self._simulator)
            self._simulator = None

    def _play(self, action: str, info: dict[str, Any]) -> StepResult:
        observation = self._ask("step", action)
        score = float(round(100 * self._ask("getScore")))
        moves = self._ask("getNumMoves")
        done = self._ask("getCompleted") or score < 0 or moves > LIMIT
        reward, self._score = score - self._score, score
        self._last.update(observation=observation, reward=reward, score=score, done=done)
        return StepResult(observation, reward=reward, score=score, done=done, info={**info, "moves": moves})

    def _ask(self, method: str, *arguments: str | int | bool) -> Any:
        if self._simulator is None:
            raise RuntimeError("there is no episode; call reset first")
        if not self._simulator.alive:
            raise RuntimeError("the simulator of this episode has ended; call reset")
        return self._simulator.ask(method, *arguments)


INSTRUCTION = "\n".join(
    (
        "You do experiments in a house with several rooms. Every observation tells what your last action changed.",
        "These are the actions, one a turn; OBJ stands for a thing and LOC for a place, as observations name them:",
        *(f"{template}: {meaning}" for template, meaning in TEMPLATES.items()),
        "Where an action could mean several things you are asked which; answer with the bare number of your choice.",
        "",
        "Write your thoughts after Thought: and then a single action after Action:, like this:",
        react_response("look around", "I need to know where I am."),
    )
)

_CHOSEN = 4
"""Variations of each task in the panel."""


def chosen_items() -> list[int]:
    """Up to four test variations of each task, at equal distances.

    The package tests on the last quarter of a task's variations (`ScienceWorldEnv.get_variations_test`). It begins here
    at 3/4 of their number, rounded up, so that none is of the package's training or development.
    """
    chosen, first = [], 0
    for count in TASKS.values():
        test = range(-(-3 * count // 4), count)
        wanted = min(_CHOSEN, len(test))
        chosen += [first + test[index * len(test) // wanted] for index in range(wanted)]
        first += count
    return chosen


SERVICE = Service(
    name="sciworld",
    make=lambda upstream: SciWorld(),
    items=ITEMS,
    instruction=INSTRUCTION,
    read=READ,
    turns=30,
    solved=lambda answer: answer.score == SOLVED,
    success_rule=f"the score is {SOLVED:g}, the highest one",
    oracle=lambda item: Oracle(*find_item(item)),
    random=lambda item, seed: Random(seed),
    full_score=SOLVED,
    category=lambda item: find_item(item)[0],
    content=lambda item: "{} {}".format(*find_item(item)),
    views=("action_hint", "goals", "task_description", "object_tree", "state"),
    table=item_table,
    score_range=(-SOLVED, SOLVED),
    oracle_success=0.9,
    checked_items=12,
    chosen=ChosenItems(chosen_items, "up to four test variations of each of the 23 tasks"),
)
