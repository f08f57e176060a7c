"""Scripted policies of TextCraft."""

import random
import re
from collections.abc import Mapping
from types import MappingProxyType

from agentrl_jax.services.environments.common import PlannedPolicy
from agentrl_jax.services.environments.textcraft.recipes import Book, Recipe, display_name


class Oracle(PlannedPolicy):
    """Crafts the goal with few actions: the cheapest recipe for each thing, gathering first; `inventory` at the end.

    The number of actions is minimal for each thing by itself. Leftovers of one craft are used for another, but the plan
    does not search for such savings.
    """

    def __init__(self, book: Book, item: int, carried: Mapping[str, int] = MappingProxyType({})):
        """Plans for an item, given the current inventory."""
        self._book = book
        self._costs: dict[str, int] = {}
        gets: dict[str, int] = {}
        crafts: list[str] = []
        self._need(book.goals[item % len(book.goals)], 1, dict(carried), gets, crafts)
        super().__init__([f"get {count} {display_name(name)}" for name, count in gets.items()] + crafts, "inventory")

    def _recipe_cost(self, recipe: Recipe) -> int:
        """Number of actions to carry out a recipe once."""
        return 1 + sum(self._cost(each.name, each.count) for each in recipe.ingredients)

    def _cost(self, name: str, count: int) -> int:
        """Number of actions to get some of a thing."""
        recipes = self._book.recipes.get(name, ())
        if not recipes:
            return 1
        best = min(recipes, key=self._recipe_cost)
        if name not in self._costs:
            self._costs[name] = self._recipe_cost(best)
        return -(-count // best.count) * self._costs[name]

    def _need(self, name: str, count: int, spare: dict[str, int], gets: dict[str, int], crafts: list[str]) -> str:
        """Plans for `count` of one item or tag, and returns the chosen item."""
        recipes = self._book.recipes.get(name, ())
        # For a tag, prefer what is there already.
        best = min(recipes, key=lambda r: (-min(spare.get(r.item, 0), count), self._recipe_cost(r)), default=None)
        item = name if best is None else best.item
        had = min(spare.get(item, 0), count)
        spare[item] = spare.get(item, 0) - had
        if best is None:
            if count > had:
                gets[name] = gets.get(name, 0) + count - had
            return name
        for _ in range(-(-(count - had) // best.count)):
            taken = [(each.count, self._need(each.name, each.count, spare, gets, crafts)) for each in best.ingredients]
            used = ", ".join(f"{number} {display_name(item)}" for number, item in taken)
            crafts.append(f"craft {best.count} {display_name(best.item)} using {used}")
            spare[best.item] += best.count
        spare[best.item] -= count - had
        return best.item


class Random:
    """Picks a shown command, something to gather that one of them needs, or a look at the inventory."""

    def __init__(self, seed: int):
        self._rng = random.Random(seed)
        self._actions: list[str] = []

    def act(self, observation: str) -> str:
        """One of these actions, uniformly; they are read from the first observation."""
        if not self._actions:
            commands = re.findall(r"^craft .*$", observation, re.MULTILINE)
            taken = {part for command in commands for part in command.partition(" using ")[2].split(", ")}
            self._actions = [*commands, *(f"get {part}" for part in sorted(taken) if part), "inventory"]
        return self._rng.choice(self._actions)
