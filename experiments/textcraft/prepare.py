"""Writes the files beside it that `experiments/textcraft.yaml` reads: `python experiments/textcraft/prepare.py`.

A tokeniser whose merges are learned from TextCraft's commands and answers, and which goals are trained on and held out:
four of five of depth 1 and two of three of depth 2, in their own words and in others (`recipes.book_of`), so that what
to do has to be read; held out are the rest, in their own words.
"""

import json
from pathlib import Path

from agentrl_jax.services.environments.textcraft.recipes import load_book, spoken
from agentrl_jax.text.build_small_tokenizer import build

FOLDER = Path(__file__).parent
VOCAB_SIZE = 1024
WORDS = ("Action:", "Thought:")
VARIANTS = 12
"""Of a training goal: item i + 544 k is goal i in other words, with other distractors."""


def corpus() -> str:
    """Every command, and what comes of it."""
    book = load_book()
    lines = ["Crafting commands:", "Inventory: You are not carrying anything."]
    for name in sorted(book.items):
        lines += [f"Got 1 {spoken(name)}", f"Could not find {spoken(name)}", f" get 1 {spoken(name)}"]
        for recipe in book.recipes.get(name, ()):
            lines += [str(recipe), f" {recipe}", f"Goal: craft {spoken(name)}.", f"Crafted {recipe.count} {name}"]
            lines.append(f"Could not find enough items to craft {name}")
    return "\n".join(lines)


def split() -> tuple[list[int], list[int]]:
    """Items to train on, and held-out ones."""
    book = load_book()
    by_depth = {depth: [i for i, goal in enumerate(book.goals) if book.depth[goal] == depth] for depth in (1, 2)}
    held_out = by_depth[1][::5] + by_depth[2][::3]
    goals = sorted({*by_depth[1], *by_depth[2]} - set(held_out))
    return [goal + variant * len(book.goals) for variant in range(VARIANTS) for goal in goals], held_out


def main() -> None:
    """Writes the files."""
    (FOLDER / "tokenizer.json").write_text(build(corpus(), VOCAB_SIZE, WORDS), encoding="utf-8")
    for name, items in zip(("textcraft_train", "textcraft_test"), split()):
        rows = [{"item_id": f"textcraft_{item}"} for item in items]
        (FOLDER / f"{name}.json").write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
