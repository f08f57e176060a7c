"""Writes the files beside it that `experiments/textcraft.yaml` reads: `python experiments/textcraft/prepare.py`.

Goals whose first text is short and whose oracle takes at most six actions, so that a context of 544 tokens holds eight
turns of nearly all: half of those of depth 2 to train on and four of five of depth 1; held out are the rest, in their
own words. Goals to train on also come with the words of all names exchanged (`recipes.book_of`): what has to be read
cannot be known by heart.
"""

import json
from pathlib import Path

from agentrl_jax.services.environments.textcraft.env import TextCraft
from agentrl_jax.services.environments.textcraft.recipes import load_book
from agentrl_jax.services.environments.textcraft.scripted import Oracle

FOLDER = Path(__file__).parent
LONGEST = 760
"""Characters of a first text."""
MOST_ACTIONS = 6
"""Of the oracle."""
WORDINGS = {1: 2, 2: 6}
"""In how many wordings goals of each depth are trained on."""


def split() -> tuple[list[int], list[int]]:
    """Items to train on, and held-out ones."""
    book = load_book()
    short = [
        item for item in range(len(book.goals)) if _is_short(item) and len(Oracle(book, item).actions) <= MOST_ACTIONS
    ]
    by_depth = {depth: [item for item in short if book.depth[book.goals[item]] == depth] for depth in (1, 2)}
    held_out = by_depth[1][::5] + by_depth[2][::2]
    items = [
        goal + len(book.goals) * wording
        for depth, goals in by_depth.items()
        for goal in goals
        if goal not in held_out
        for wording in range(WORDINGS[depth])
    ]
    return sorted(filter(_is_short, items)), held_out


def _is_short(item: int) -> bool:
    return len(TextCraft().reset(item).observation) <= LONGEST


def main() -> None:
    """Writes the files."""
    for name, items in zip(("textcraft_train", "textcraft_test"), split()):
        rows = [{"item_id": f"textcraft_{item}"} for item in items]
        (FOLDER / f"{name}.json").write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
