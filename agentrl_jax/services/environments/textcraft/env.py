"""TextCraft (Prasad et al. 2023, arXiv 2311.05772) as AgentGym serves it (arXiv 2406.04151)."""

import dataclasses
import functools
import random
import re
from collections import Counter
from collections.abc import Sequence

from agentrl_jax.services.environment import ChosenItems, ItemError, Service, ServiceEnvironment, StepResult
from agentrl_jax.services.environments.textcraft.protocol import READ
from agentrl_jax.services.environments.textcraft.recipes import (
    Book,
    Ingredient,
    book_of,
    display_name,
    item_id,
    load_book,
)
from agentrl_jax.services.environments.textcraft.scripted import Oracle, Random
from agentrl_jax.services.texts import cut

MAX_DISTRACTORS = 10
"""Maximum number of shown commands that are not needed for the goal."""

SHUFFLE_SEED = 42

MAX_ACTION_CHARACTERS = 8192
"""Maximum length of an action that is carried out, in characters; the longest recipe command has fewer than 200."""

GOALS = 544
"""Number of goals in the installed recipes."""

_CRAFT = re.compile(r"craft (.*) using (.*)")
_GET = re.compile(r"get ([0-9]{1,18}) (.*)")
_COUNTED = re.compile(r"([0-9]{1,18}) (.*)")


class _Refused(Exception):
    """An action that is not possible; the message is the observation."""


class TextCraft(ServiceEnvironment):
    """One episode: craft the goal from what can be gathered.

    Item i is goal i modulo the number of goals (544), in the order of `Book.goals`, least depth first. Actions:
    `get N THING`, `craft [N] THING using N THING, N THING`, `inventory`. The reward is 1 for crafting the goal, which
    ends the episode, and 0 otherwise; there is no step limit.

    Differences from AgentGym's server: goals are numbered in sorted order of the recipe files, and distractors are
    sampled from sorted lists with a fixed seed per variant, because AgentGym's order depends on the machine. In
    addition, item 544k + g is goal g with all words of the item names permuted (`recipes.book_of`) and with other
    distractors, unless `upstream`; and a thing that is named twice in one command has to be carried twice.
    """

    def __init__(self, book: Book | None = None, *, upstream: bool = False):
        """Creates an instance without an episode; `book` defaults to the installed recipes.

        `upstream` reproduces faults of AgentGym too: items from 544 on repeat the first 544, word for word.
        """
        self._given, self._upstream = book, upstream
        self._book = load_book() if book is None else book
        self._goal, self._item, self._plan_length = "", 0, 0
        self._commands: list[str] = []
        self._inventory = Counter[str]()

    def commands(self) -> str:
        """The commands that were shown, one per line."""
        return "\n".join(self._commands)

    def goal(self) -> str:
        """The item to craft, "minecraft:..."."""
        return self._goal

    def progress(self) -> float:
        """Share of the oracle's actions made unnecessary by the inventory: 0 at first, 1 when the goal is crafted."""
        return 1.0 - min(len(Oracle(self._book, self._item, self._inventory).actions) / self._plan_length, 1.0)

    def advice(self) -> str:
        """The oracle's next action from the current inventory."""
        return Oracle(self._book, self._item, self._inventory).act("")

    def reset(self, item: int) -> StepResult:
        """Shows the commands and the goal. Any integer is an item."""
        if self._given is None:
            self._book = load_book() if self._upstream else book_of(item)
        book = self._book
        variant, goal_index = divmod(item, len(book.goals))
        rng = random.Random(SHUFFLE_SEED + (0 if self._upstream else variant))
        self._goal, self._inventory = book.goals[goal_index], Counter()
        self._item, self._plan_length = item, len(Oracle(book, item).actions)
        needed = book.tree(self._goal)
        names = dict.fromkeys(each.name for recipe in needed for each in recipe.ingredients)
        shown = {str(recipe) for recipe in needed}
        others = sorted({str(recipe) for recipe in book.uses(names)} - shown)
        self._commands = sorted(shown) + rng.sample(others, min(len(others), MAX_DISTRACTORS))
        rng.shuffle(self._commands)
        return StepResult(f"Crafting commands:\n{self.commands()}\n\nGoal: craft {display_name(self._goal)}.")

    def step(self, action: str) -> StepResult:
        """Carries out an action, or says why it is not possible."""
        try:
            if len(action) > MAX_ACTION_CHARACTERS:
                raise _Refused(f"Could not execute {action}")
            if match := _CRAFT.match(action):
                return self._craft(match[1], match[2])
            if match := _GET.match(action):
                return self._get(int(match[1]), match[2])
            if action.startswith("inventory"):
                return StepResult(self._carried())
            raise _Refused(f"Could not execute {action}")
        except _Refused as refusal:
            return StepResult(cut(str(refusal)))

    def _get(self, count: int, text: str) -> StepResult:
        name, book = item_id(text), self._book
        if name in book.recipes or name in book.tags or name not in book.items:
            raise _Refused(f"Could not find {text}")
        self._inventory[name] += count
        return StepResult(f"Got {count} {text}")

    def _craft(self, target: str, taken: str) -> StepResult:
        counted = _COUNTED.match(target)
        count, name = (int(counted[1]), item_id(counted[2])) if counted else (1, item_id(target))
        tag = name in self._book.tags
        entries = [self._entry(part.strip()) for part in taken.split(",")]
        wanted = Counter[str]()
        for item_name, amount in entries:
            wanted[item_name] += amount
        carried = self._inventory
        if any(each not in carried or carried[each] < amount for each, amount in wanted.items()):
            raise _Refused(f"Could not find enough items to craft {None if tag else name}")
        known = () if tag else self._book.recipes.get(name, ())
        recipe = next((recipe for recipe in known if self._matches(recipe.ingredients, entries)), None)
        if recipe is None:
            original = f"tag='{name}', item_id=None" if tag else f"tag=None, item_id='{name}'"
            wanted_item = f"ItemTagWithCount(item_tag=ItemTag({original}), count={count})"
            raise _Refused(f"Could not find a valid recipe for {wanted_item}")
        for item_name, amount in wanted.items():
            self._inventory[item_name] -= amount
            if not self._inventory[item_name]:
                del self._inventory[item_name]
        self._inventory[name] += recipe.count
        made = name == self._goal
        return StepResult(f"Crafted {recipe.count} {name}", reward=float(made), score=float(made), done=made)

    def _entry(self, part: str) -> tuple[str, int]:
        """The item or tag and the count in a part of a command."""
        match = _COUNTED.match(part)
        if match is None:
            raise _Refused(f"Wrong item format: {part}")
        return item_id(match[2]), int(match[1])

    def _matches(self, ingredients: Sequence[Ingredient], entries: Sequence[tuple[str, int]]) -> bool:
        """Whether the entries match the ingredients one to one."""
        # A wrong count is detected before the search, whose time grows as entries to the power of ingredients.
        if len(ingredients) != len(entries):
            return False
        if not ingredients:
            return True
        first, rest = ingredients[0], ingredients[1:]
        return any(
            first.count == count
            and self._book.fits(first, item_name)
            and self._matches(rest, [*entries[:index], *entries[index + 1 :]])
            for index, (item_name, count) in enumerate(entries)
        )

    def _carried(self) -> str:
        if not self._inventory:
            return "Inventory: You are not carrying anything."
        return "Inventory: " + "".join(f"[{display_name(name)}] ({count}) " for name, count in self._inventory.items())


def goal_table() -> list[dict[str, object]]:
    """The goal and the depth of every item, as served to clients."""
    book = load_book()
    return [{"item": index, "goal": goal, "depth": book.depth[goal]} for index, goal in enumerate(book.goals)]


@functools.lru_cache(maxsize=4 * GOALS)
def locate(text: str) -> int:
    """The item, below 544, whose goal is named in the first observation and whose oracle plan the shown commands allow.

    AgentGym's server numbers goals by the order of files on its disk. That order also decides which recipes it leaves
    out to avoid cycles. Raises `ItemError` if the goal is unknown here, or the plan needs other recipes.
    """
    book, shown = load_book(), set(re.findall(r"^craft .*$", text, re.MULTILINE))
    goal = re.search(r"^Goal: craft (.+)\.\s*\Z", text, re.MULTILINE)
    if goal is None or item_id(goal[1]) not in book.goals:
        named = f"the goal {goal[1][:100]!r}, which no item has here" if goal else "no goal"
        raise ItemError(f"it shows {named}", named)
    goal_index = book.goals.index(item_id(goal[1]))
    plan = Oracle(book, goal_index).actions
    made = {found[1].lstrip("0123456789 ") for line in shown if (found := _CRAFT.match(line))}
    gathered = {action.split(" ", 2)[2] for action in plan if action.startswith("get ")}
    shown_recipes = {
        name: left for name, known in book.recipes.items() if (left := tuple(r for r in known if str(r) in shown))
    }
    env = TextCraft(dataclasses.replace(book, recipes=shown_recipes))
    env.reset(goal_index)
    if gathered & made or not [env.step(action) for action in plan][-1].done:
        raise ItemError(f"its recipes do not allow the plan that is known here for {goal[1]!r}", goal[1])
    return goal_index


SERVICE = Service(
    name="textcraft",
    make=lambda upstream: TextCraft(upstream=upstream),
    items=2**31,
    instruction=(
        "You craft things in Minecraft. First you are shown crafting commands and a goal; then you act, one action a "
        "turn, and are told what came of it.\n"
        "get N THING gathers something that cannot be crafted, e.g. get 2 oak logs.\n"
        "craft N THING using N THING, N THING crafts with one of the commands shown, e.g. craft 4 oak planks using 1 "
        "oak logs. Where a command names a kind of thing, such as planks, take any thing of it, such as oak planks.\n"
        "inventory lists what you carry.\n"
        "Always say how many. Write your thoughts after Thought: and then a single action after Action:, on one line."
    ),
    read=READ,
    turns=20,
    solved=lambda answer: answer.done and answer.reward > 0,
    success_rule="the episode is over and the last reward is above 0, which is paid for crafting the goal",
    oracle=lambda item: Oracle(book_of(item), item),
    random=lambda item, seed: Random(seed),
    distinct=GOALS,
    chosen=ChosenItems(lambda: range(0, GOALS, 5), "every fifth of the 544 goals, from 0"),
    progress=lambda env: env.progress(),
    advise=lambda env: env.advice(),
    category=lambda item: f"depth {load_book().depth[load_book().goals[item % len(load_book().goals)]]}",
    content=lambda item: load_book().goals[item % GOALS],
    locate=locate,
    views=("commands", "goal"),
    floor=0.2,
    table=goal_table,
)
