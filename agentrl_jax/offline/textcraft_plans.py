"""Gold plans of TextCraft and TextCraft-Synth as conversations, from the wheel of `platoon-textcraft`.

The wheel is read in place, as a file: its package needs Python 3.12 and is not imported. Its game is another one than
AgentGym's TextCraft: the inventory is given, so that there is no `get`, and what is gained over it counts. The plans
have no text. Here they get one: the goal, the inventory and the recipes of the plan in the order of their names are the
first message of the user, each call is a reply, and what the game answers, with the inventory then, is the next
message. `finish` ends it. Recipes that the plan does not need are not shown.

Source: the package platoon-textcraft 0.3.0 (MIT), whose file names, tools and messages are used.
"""

import hashlib
import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentrl_jax.errors import UserError, refusals, shown
from agentrl_jax.offline.conversations import Conversation, Data, Message
from agentrl_jax.offline.messages import refuse
from agentrl_jax.strict_json import parse_object

DATA = "platoon_textcraft/data/"
"""The folder of the task files in the wheel."""
FILES = {
    "train": "textcraft_train.jsonl",
    "val": "textcraft_val.jsonl",
    "synth_train": "textcraft_synth_train.jsonl",
    "synth_val": "textcraft_synth_val.jsonl",
}
"""The file of each split."""
TOO_LONG = "longer than its max_steps"
IMPOSSIBLE = "crafts what the inventory lacks"
MISSED = "misses its goal"
"""Why plans are left out. The call of `finish` is a step too. In version 0.3.0, nine plans of the original game use an
ingredient `tag:planks`, which no inventory has."""

SYSTEM = """\
You craft items from the ingredients in an inventory. What you have at the start does not count: the items of the goal \
have to be gained on top of it.
Write one call a turn:
craft({"ingredient": count}, ("item", total)) - total items come out, a multiple of what the recipe makes; the \
ingredients are those of all of them
get_info(["item"]) - the recipes of items
view_inventory() - what you have
finish("message") - ends the task, which is judged then"""

_SPLIT = re.compile(r"(synth_train|synth_val)-(easy|medium|hard|extreme)")
_LARGEST = 2**28
"""Bytes of a file in the wheel at most."""


def read_plans(wheel: Path, split: str = "") -> Data:
    """The plans of a split: one of `FILES`, of synth also `synth_train-easy` (medium, hard, extreme); empty for all.

    Raises:
        UserError: the file is no such wheel, a file in it is not as its SHA256SUMS says, or there is no such split.
    """
    found = _SPLIT.fullmatch(split)
    name, difficulty = (found[1], found[2]) if found else (split, None)
    if name and name not in FILES:
        raise UserError.of("split", split, f"expected one of {', '.join(FILES)}, synth_train-easy and so on, or none")
    rows: list[Conversation] = []
    dropped: Counter[str] = Counter()
    for file in [FILES[name]] if name else FILES.values():
        for number, plan in _plans(wheel, file):
            if difficulty in (None, plan["misc"].get("difficulty")):
                made = conversation_of_plan(plan, file, number, f"{wheel}/{DATA}{file}:{number}")
                if isinstance(made, str):
                    dropped[made] += 1
                else:
                    rows.append(made)
    return Data.of(rows, f"{wheel.name}{f' {split}' if split else ''}", dropped)


def conversation_of_plan(plan: Mapping[str, Any], file: str, number: int, where: str) -> Conversation | str:
    """The conversation of row `number` of a file, or why it is left out. The ids of rows are not unique.

    Raises:
        UserError: it is no plan; the message begins with `where`.
    """
    misc = plan["misc"]
    start, targets = (_counts(misc.get(key), key, where) for key in ("initial_inventory", "target_items"))
    steps = misc.get("gold_trajectory")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        refuse(where, "gold_trajectory", steps, "expected a list of crafts")
    if not isinstance(plan.get("max_steps"), int) or not isinstance(plan.get("goal"), str):
        refuse(where, "goal and max_steps", plan.get("max_steps"), "expected a text and an integer")
    if len(steps) + 1 > plan["max_steps"]:
        return TOO_LONG
    inventory, recipes, messages = dict(start), set(), []
    for step in steps:
        item, used, times, made = _craft(step, where)
        if any(inventory.get(name, 0) < count for name, count in used.items()):
            return IMPOSSIBLE
        once = {name: count // times for name, count in used.items()}
        recipes.add((item, f"{json.dumps(once)} -> {made // times} {item}"))
        for name, count in used.items():
            inventory[name] -= count
            if not inventory[name]:
                del inventory[name]
        inventory[item] = inventory.get(item, 0) + made
        messages.append(Message("assistant", f"craft({json.dumps(used)}, ({json.dumps(item)}, {made}))"))
        answer = f"Successfully crafted {made} {item}(s)\nInventory: {json.dumps(inventory)}"
        messages.append(Message("user", answer))
    if any(inventory.get(name, 0) - start.get(name, 0) < count for name, count in targets.items()):
        return MISSED
    known = "\n".join(text for _, text in sorted(recipes))
    asked = f"Goal: {plan['goal']}\nInventory: {json.dumps(start)}\nRecipes:\n{known}"
    crafted = ", ".join(f"{count}x {name}" for name, count in targets.items())
    messages = [Message("system", SYSTEM), Message("user", asked), *messages]
    messages.append(Message("assistant", f"finish({json.dumps(f'Crafted {crafted}')})"))
    task = "textcraft_synth_plans" if "synth" in file else "textcraft_plans"
    return Conversation(tuple(messages), task, f"{file}:{number}", 1.0, True, where)


def _plans(wheel: Path, file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file, with the numbers of their lines."""
    content = _content(wheel, file)
    sums = _content(wheel, "SHA256SUMS").decode(errors="replace").splitlines()
    if f"{hashlib.sha256(content).hexdigest()}  {file}" not in sums:
        raise UserError.at(f"{wheel}/{DATA}{file}", "is not what its SHA256SUMS says; download the wheel again")
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            where = f"{wheel}/{DATA}{file}:{number}"
            with refusals():
                plan = parse_object(line, where)
            if not isinstance(plan.get("misc"), dict):
                refuse(where, "misc", plan.get("misc"), "expected an object with gold_trajectory")
            yield number, plan


def _content(wheel: Path, file: str) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            size = archive.getinfo(DATA + file).file_size
            if size > _LARGEST:
                raise UserError.at(f"{wheel}/{DATA}{file}", f"has {size} bytes, expected at most {_LARGEST}", size)
            return archive.read(DATA + file)
    except KeyError as error:
        raise UserError.at(wheel, f"has no file {DATA}{file}; expected the wheel of platoon-textcraft 0.3") from error
    except (OSError, zipfile.BadZipFile, EOFError, RuntimeError, ValueError, zlib.error) as error:
        raise UserError.at(wheel, f"cannot be read ({error}); download the wheel again") from error


def _craft(step: Mapping[str, Any], where: str) -> tuple[str, dict[str, int], int, int]:
    """The item of a craft, its ingredients in all, how many times its recipe is used, and how many items come out."""
    target = step.get("target")
    if step.get("action") != "craft" or not isinstance(target, list) or len(target) != 2:
        refuse(where, "gold_trajectory", step, "expected a craft of [item, times]")
    item, times = target
    made: Any = step.get("result_count")
    used = _counts(step.get("ingredients"), "ingredients", where)
    if not isinstance(item, str) or not _positive(times) or not _positive(made):
        refuse(where, "target", [*target, made], "expected an item, and how often it is made, with a positive result")
    if made % times or any(count % times for count in used.values()):
        refuse(where, "target", target, f"which does not divide the ingredients {shown(used)} and the result {made}")
    return item, used, times, made


def _counts(found: Any, key: str, where: str) -> dict[str, int]:
    if not isinstance(found, dict) or not all(map(_positive, found.values())):
        refuse(where, key, found, "expected counts of items, integers above 0")
    return found


def _positive(value: Any) -> bool:
    return type(value) is int and value > 0
