"""Scenes of episodes that are known by their texts: those of services, of API models and of other programs' logs."""

from collections.abc import Sequence

import numpy as np

from agentrl_jax.config import Config, alone
from agentrl_jax.formats.dialogs import message_format, read_dialog
from agentrl_jax.formats.episodes import flaw_of
from agentrl_jax.runs.rollout_records import RolloutRecord
from agentrl_jax.services.scenes import text_reader_of, text_scenes
from agentrl_jax.setup.agents import context_of
from agentrl_jax.text.tokenizer import Tokenizer
from agentrl_jax.viewer.screenshots import PageScreenshots
from envs_jax.scenes import Scene


def served_scenes(
    config: Config, record: RolloutRecord, tokenizer: Tokenizer, screenshots: PageScreenshots
) -> list[list[Scene]] | None:
    """The scenes of every recorded episode of an iteration, as `services.scenes.text_scenes` gives them.

    Episodes of an evaluation have their screenshots, too. Returns None if no service of the run has scenes, or the
    record is not one of this configuration and tokenizer.
    """
    known = [text_reader_of(task.env) is not None for task in config.tasks]
    same_tasks = record.header.tasks == tuple(task.label for task in config.tasks)
    if not any(known) or not same_tasks or flaw_of(record, tokenizer.vocab_size):
        return None
    context = context_of(config)
    forms = [
        message_format(alone(config, task).prompt, tokenizer) if known[task] else None for task in range(len(known))
    ]
    items = screenshots.items_of(config.tasks) if record.header.evaluation is not None else None
    found: list[list[Scene]] = []
    for row, task in enumerate(record.task):
        scenes: list[Scene] = []
        if (form := forms[task]) is not None:
            dialog = read_dialog(record, row, tokenizer, form, context)
            again = np.flatnonzero(np.diff(record.attempt[row, : len(dialog.messages)])) + 1
            texts = [*dialog.messages, *([dialog.unanswered] if dialog.unanswered is not None else [])]
            scenes = attempts_scenes(config.tasks[task].env, texts, dialog.responses, again.tolist())
            if items is not None and 0 <= record.level[row] < len(items[task]):
                item = items[task][record.level[row]]
                scenes = screenshots.add(
                    scenes, config.tasks[task].env, record.header.iteration, item, dialog.responses
                )
        found.append(scenes)
    return found


def list_characters(scenes: Sequence[Scene]) -> int:
    """Characters of the lists and images of scenes; a list that is also in the scene before counts there alone."""
    total, before = 0, []
    for scene in scenes:
        lists = scene.get("lists", [])
        new = (part for part in lists if part not in before)
        total += sum(len(text) for part in new for entry in part["entries"] for text in entry)
        total += len(scene.get("image", ""))
        before = lists
    return total


def attempts_scenes(
    name: str, texts: Sequence[str], responses: Sequence[str], again: Sequence[int] = ()
) -> list[Scene]:
    """The scenes of an episode whose level begins again in the turns `again`, before which its last answer is lost."""
    found: list[Scene] = []
    ends = [*again, len(texts)]
    for number, (start, end) in enumerate(zip([0, *again], ends, strict=True), start=1):
        scenes = text_scenes(name, texts[start:end], responses[start : min(end, len(responses))], start)
        if start and scenes:
            scenes[0] |= {"turn": start - 1, "action": f"the start of attempt {number}"}
        found += scenes
    return found
