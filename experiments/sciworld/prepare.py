"""Writes the files beside it that `experiments/sciworld.yaml` reads: `python experiments/sciworld/prepare.py`.

Items of one task, find-non-living-thing, four of five to train on and the rest held out, and a tokenizer whose merges
are learned from what the simulator says along the gold paths of some training items. Needs Java.
"""

import json
import random
from pathlib import Path

from agentrl_jax.services.environments.sciworld.env import SERVICE, find_item, item_table
from agentrl_jax.services.environments.sciworld.scripted import Oracle
from agentrl_jax.services.protocol import routes_of
from agentrl_jax.text.build_small_tokenizer import build

FOLDER = Path(__file__).parent
TASK = "find-non-living-thing"
VOCAB_SIZE = 1024
WORDS = ("Action:", "Thought:")


def split() -> tuple[list[int], list[int]]:
    """Items to train on, and held-out ones."""
    items = [row["item"] for row in item_table() if row["task_name"] == TASK]
    held_out = sorted(random.Random(0).sample(items, len(items) // 5))  # every fifth would be those of two rooms
    return sorted({*items} - {*held_out}), held_out


def corpus(items: list[int]) -> str:
    """Every text of the gold paths of some items."""
    env, lines = SERVICE.make(False), []
    for item in items:
        answer = routes_of(SERVICE.name).first_result(env.reset(item))
        player = Oracle(*find_item(item))
        while not answer.done:
            lines.append(answer.observation)
            action = player.act(answer.observation)
            lines.append(f" {action}")
            answer = env.step(action)
        lines.append(answer.observation)
    env.close()
    return "\n".join(lines)


def main() -> None:
    """Writes the files."""
    training, held_out = split()
    (FOLDER / "tokenizer.json").write_text(build(corpus(training[::8]), VOCAB_SIZE, WORDS), encoding="utf-8")
    for name, items in (("sciworld_train", training), ("sciworld_test", held_out)):
        rows = [{"item_id": f"sciworld_{item}"} for item in items]
        (FOLDER / f"{name}.json").write_text(json.dumps(rows, indent=0) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
