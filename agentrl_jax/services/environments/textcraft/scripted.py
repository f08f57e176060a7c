"""Scripted policies of TextCraft."""

import random
import re
from collections.abc import Mapping
from types import MappingProxyType

from agentrl_jax.services.environments.textcraft.recipes import Book, Recipe, spoken


class Oracle:
    """Crafts the goal with few actions: the cheapest recipe for each thing, gathering first.

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
        self.actions = [f"get {count} {spoken(name)}" for name, count in gets.items()] + crafts
        """All actions in order."""
        self._left = iter(self.actions)

    def act(self, observation: str) -> str:
        """The next action of the plan; `inventory` after its end."""
        return next(self._left, "inventory")

    def _cost(self, name: str) -> int:
        """Number of actions to make one of a thing."""
        if name not in self._costs:
            ways = [self._way_cost(recipe) for recipe in self._book.recipes.get(name, ())]
            self._costs[name] = min(ways, default=1)
        return self._costs[name]

    def _way_cost(self, recipe: Recipe) -> int:
        def one(name: str, count: int) -> int:
            ways = self._book.recipes.get(name, ())
            if not ways:
                return 1
            best = min(ways, key=self._way_cost)
            return -(-count // best.count) * self._cost(name)

        return 1 + sum(one(each.name, each.count) for each in recipe.ingredients)

    def _need(self, name: str, count: int, spare: dict[str, int], gets: dict[str, int], crafts: list[str]) -> str:
        """Plans for `count` of one item or tag, and returns the chosen item."""
        ways = self._book.recipes.get(name, ())
        # For a tag, prefer what is there already.
        best = min(ways, key=lambda way: (-min(spare.get(way.item, 0), count), self._way_cost(way)), default=None)
        item = name if best is None else best.item
        had = min(spare.get(item, 0), count)
        spare[item] = spare.get(item, 0) - had
        if best is None:
            if count > had:
                gets[name] = gets.get(name, 0) + count - had
            return name
        for _ in range(-(-(count - had) // best.count)):
            taken = [(each.count, self._need(each.name, each.count, spare, gets, crafts)) for each in best.ingredients]
            used = ", ".join(f"{number} {spoken(item)}" for number, item in taken)
            crafts.append(f"craft {best.count} {spoken(best.item)} using {used}")
            spare[best.item] += best.count
        spare[best.item] -= count - had
        return best.item


class Random:
    """Picks a shown command, something to gather that one of them needs, or a look at the inventory."""

    def __init__(self, seed: int):
        """Seeds a separate random generator."""
        self._draw = random.Random(seed)
        self._actions: list[str] = []

    def act(self, observation: str) -> str:
        """A random action, uniform over the kinds."""
        if not self._actions:
            commands = re.findall(r"^craft .*$", observation, re.MULTILINE)
            taken = {part for command in commands for part in command.partition(" using ")[2].split(", ")}
            self._actions = [*commands, *(f"get {part}" for part in sorted(taken) if part), "inventory"]
        return self._draw.choice(self._actions)
