"""ScienceWorld (Wang et al. 2022, arXiv 2203.07540) as AgentGym serves it (arXiv 2406.04151).

The simulator is the one of the package scienceworld, in a Java process of its own for each instance; items, scores and
endings are AgentGym's. What differs is listed at `SciWorld`.
"""

import dataclasses
import json
import os
import tempfile
from typing import Any

from agentrl_jax.services.action_parsing import last_action, react_response
from agentrl_jax.services.environment import ItemError, Service, StepResult
from agentrl_jax.services.environments.sciworld_pool import Pool, Simulator, find_java
from agentrl_jax.services.environments.sciworld_scripted import TEMPLATES, Oracle, Random

TASKS: dict[str, int] = {
    "boil": 30,
    "melt": 30,
    "freeze": 30,
    "change-the-state-of-matter-of": 30,
    "use-thermometer": 540,
    "measure-melting-point-known-substance": 436,
    "measure-melting-point-unknown-substance": 300,
    "power-component": 20,
    "power-component-renewable-vs-nonrenewable-energy": 20,
    "test-conductivity": 900,
    "test-conductivity-of-unknown-substances": 600,
    "find-living-thing": 300,
    "find-non-living-thing": 300,
    "find-plant": 300,
    "find-animal": 300,
    "chemistry-mix": 32,
    "chemistry-mix-paint-secondary-color": 36,
    "chemistry-mix-paint-tertiary-color": 36,
    "lifespan-longest-lived": 125,
    "lifespan-shortest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125,
    "identify-life-stages-1": 14,
    "identify-life-stages-2": 10,
}
"""Tasks and how many variations each has. Items are numbered through them in this order; AgentGym leaves seven of
ScienceWorld's thirty out: both of growing, and all of inclined planes and of genetics."""

ITEMS = sum(TASKS.values())

LIMIT = 100
"""Moves after which an episode goes on; one more ends it."""

SOLVED = 100.0
"""The full score."""

_POOL = Pool()


def find_item(item: int) -> tuple[str, int]:
    """Task and variation of an item.

    Raises:
        ItemError: there is no such item; the message is AgentGym's.
    """
    left = item
    for task, count in TASKS.items():
        if 0 <= left < count:
            return task, left
        left -= count
    raise ItemError("list index out of range")


def item_table() -> list[dict[str, Any]]:
    """Task and variation of every item, as the service publishes them."""
    pairs = ((task, number) for task, count in TASKS.items() for number in range(count))
    return [{"item": item, "task_name": task, "var_num": number} for item, (task, number) in enumerate(pairs)]


class SciWorld:
    """One episode: carry out a school experiment in a house of ten places.

    An item is a task and a variation of it, without simplifications, see `TASKS`. An action is any text; what the
    simulator does not understand costs no move, and neither does looking around. `wait` counts as eleven moves, `wait1`
    as two. A command that fits several things is answered by a numbered question, to be answered with the bare number;
    anything else then cancels it and costs a move. The score is 100 times the progress, -100 after a wrong `focus on`,
    the reward its change. The episode ends when the task is completed or lost, and with the first move over 100.

    What differs from AgentGym's server: answers depend on item and actions alone, while there things that lie together
    are listed in an order of chance, and drawn thermometer readings differ too. Object trees number things on through
    all episodes of a process. There are no negative items, and no further ones after a second /create. The texts that
    the server throws away are not made, which makes a step about ten times as fast. `upstream` changes nothing.
    """

    def __init__(self, pool: Pool = _POOL):
        """An instance without an episode and without a process.

        Args:
            pool: where it takes its simulator from, at the first reset.

        Raises:
            ValueError: Java or a package is missing.
        """
        find_java()
        self._pool = pool
        self._simulator: Simulator | None = None
        self._score = 0.0
        self._last: dict[str, Any] = {}

    def reset(self, item: int) -> StepResult:
        """Starts a variation with one `look around`. The text is the room alone, the task stands in `info`.

        Raises:
            ItemError: the item is not one of 0 to 4638.
            RuntimeError: the simulator does not start or fails.
        """
        task, variation = find_item(item)
        if self._simulator is not None and not self._simulator.alive:
            self.close()
        if self._simulator is None:
            self._simulator = self._pool.take()
        self._ask("load", task, variation, "", False)
        self._score = 0.0
        info = {
            "task_name": task,
            "var_num": variation,
            "task_description": self._ask("getTaskDescription"),
            "deleted": False,
        }
        self._last = dict(info)
        return self._play("look around", info)

    def step(self, action: str) -> StepResult:
        """Carries out a command.

        Raises:
            RuntimeError: there is no episode, or the simulator fails.
        """
        return self._play(action.encode("utf-8", "replace").decode(), {})

    def step_visual(self, action: str) -> StepResult:
        """As `step`, and in the answer's `info` all that the simulator can tell; slow. Finds the action in a reply."""
        answer = self.step(last_action(action).action or "" if "Action:" in action else action)
        inventory, moves = self._ask("freeActionInventory"), answer.info["moves"]
        info = {
            "moves": moves,
            "score": answer.score,
            "reward": answer.reward,
            "look": self._ask("freeActionLook"),
            "inv": inventory,
            "taskDesc": self._ask("freeActionTaskDesc"),
            "valid": self._ask("getValidActionObjectCombinations"),
            "variationIdx": self._last["var_num"],
            "taskName": self._last["task_name"],
            "simplificationStr": "",
        }
        told = {"info": info, **self.object_tree(), "inventory": inventory, "moves": moves}
        return dataclasses.replace(answer, info=told)

    def action_hint(self) -> dict[str, list[str]]:
        """Templates of actions, and things that can be named now."""
        return {
            "possible_actions": self._ask("getPossibleActions"),
            "possible_objects": self._ask("getPossibleObjects"),
        }

    def goals(self) -> dict[str, str]:
        """Subgoals and which are reached."""
        return {"goals": self._ask("getGoalProgressStr")}

    def task_description(self) -> dict[str, str]:
        """What is to be done."""
        return {"task_description": self._ask("getTaskDescription")}

    def object_tree(self) -> dict[str, Any]:
        """Everything there is, with its properties, one thing in another."""
        with tempfile.TemporaryDirectory() as folder:  # the simulator tells it by a file only
            if refusal := self._ask("getObjectTree", folder):
                raise RuntimeError(f"ScienceWorld's simulator gave no object tree: {refusal}")
            with open(os.path.join(folder, "objectTree.json"), encoding="utf-8") as file:
                return {"object_tree": json.load(file)}

    def state(self) -> dict[str, Any]:
        """A short account of the episode; of actions and things the first ten."""
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
        """Gives the simulator back."""
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

SERVICE = Service(
    name="sciworld",
    make=lambda upstream: SciWorld(),
    items=ITEMS,
    instruction=INSTRUCTION,
    read=last_action,
    write=react_response,
    turns=30,
    solved=lambda answer: answer.score == SOLVED,
    oracle=lambda item: Oracle(*find_item(item)),
    random=lambda item, seed: Random(seed),
    full_score=SOLVED,
    category=lambda item: find_item(item)[0],
    content=lambda item: "{} {}".format(*find_item(item)),
    views={name: name for name in ("action_hint", "goals", "task_description", "object_tree", "state")},
    table=item_table,
)
