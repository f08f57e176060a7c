"""Writes the files beside it that `experiments/textcraft.yaml` reads: `python experiments/textcraft/prepare.py`.

Goals to train on, four of five of depth 1 and two of three of depth 2; held out are the rest.
"""

import json
from pathlib import Path

from agentrl_jax.services.environments.textcraft.recipes import load_book

FOLDER = Path(__file__).parent


def split() -> tuple[list[int], list[int]]:
    """Items to train on, and held-out ones."""
    book = load_book()
    by_depth = {depth: [i for i, goal in enumerate(book.goals) if book.depth[goal] == depth] for depth in (1, 2)}
    held_out = by_depth[1][::5] + by_depth[2][::3]
    return sorted({*by_depth[1], *by_depth[2]} - set(held_out)), held_out


def main() -> None:
    """Writes the files."""
    for name, items in zip(("textcraft_train", "textcraft_test"), split()):
        rows = [{"item_id": f"textcraft_{item}"} for item in items]
        (FOLDER / f"{name}.json").write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
