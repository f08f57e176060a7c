"""Writes conversations as JSONL, as AgentGym's arrays, and episodes of a run in the schema of RLDS."""

import json
from pathlib import Path
from typing import Any

from agentrl_jax.errors import UserError
from agentrl_jax.formats.episodes import Episode
from agentrl_jax.io import atomic_write
from agentrl_jax.offline.conversations import Conversation, Data, Message, Pairs
from agentrl_jax.offline.messages import item_id, split_item_id
from agentrl_jax.offline.recorded import episodes_of, is_run
from agentrl_jax.offline.tfds_folders import build, import_builders

SIDES = ("chosen", "rejected")
_FROM = {"user": "human", "assistant": "gpt", "system": "system"}


def write_jsonl(data: Data, file: Path) -> None:
    """Writes one conversation a line, which `read.read_data` reads again."""
    _refuse_existing(file)
    with atomic_write(file) as stream:
        for conversation in data.conversations:
            stream.write(_json(_as_row(conversation)) + "\n")


def write_pairs(pairs: Pairs, file: Path) -> None:
    """Writes one pair a line, which `read.read_pairs` reads again."""
    _refuse_existing(file)
    with atomic_write(file) as stream:
        for pair in pairs.pairs:
            sides = {side: [_plain(message) for message in getattr(pair, side)] for side in ("prompt", *SIDES)}
            named = {name: value for name in ("id", "task", "item") if (value := getattr(pair, name))}
            stream.write(_json(sides | named) + "\n")


def write_agenttraj(data: Data, file: Path) -> None:
    """Writes an array like those of AgentTraj-L, which `read.read_data` reads again.

    A system message is `from: system`, which AgentGym's own files do not have. Rewards, success, and names that an
    `item_id` cannot hold are keys beside AgentGym's.
    """
    _refuse_existing(file)
    with atomic_write(file) as stream:
        for number, conversation in enumerate(data.conversations):
            stream.write(("[\n" if number == 0 else ",\n") + _json(_as_agenttraj(conversation)))
        stream.write("\n]\n")


def write_rlds(run: Path, folder: Path) -> str:
    """Writes the recorded episodes of a run for TFDS, in the schema of RLDS; returns how many.

    Raises:
        UserError: it is no run, as only recorded episodes have a reward for each step; or as `tfds_folders.build`.
    """
    if not is_run(run):
        raise UserError.at(run, "is no run, and only recorded episodes have the reward of each step; export jsonl")
    builders = import_builders()
    episodes = [
        _as_rlds(episode, source.header.iteration)
        for episode, source in episodes_of(run)
        if episode.turns and not episode.failed
    ]
    build(builders.AgentrlRlds, {"train": episodes}, {"name": run.resolve().name}, folder)
    return f"{len(episodes)} episodes"


def _refuse_existing(file: Path) -> None:
    if file.exists():
        raise UserError.at(file, "exists; give a new file")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def _as_row(conversation: Conversation) -> dict[str, Any]:
    return {"messages": [_plain(message) for message in conversation.messages], **_known(conversation)}


def _plain(message: Message) -> dict[str, Any]:
    made: dict[str, Any] = {"role": message.role, "content": message.content}
    return made if message.loss or message.role != "assistant" else made | {"loss": False}


def _as_agenttraj(conversation: Conversation) -> dict[str, Any]:
    task, item = conversation.task, conversation.item
    # AgentGym's ids are not empty.
    name = item_id(task, item) or "none"
    messages = [
        {"from": _FROM[m.role], "value": m.content, "loss": m.loss if m.role == "assistant" else None}
        for m in conversation.messages
    ]
    row = {"conversations": messages, "item_id": name, **_known(conversation)}
    if split_item_id(name) == (task, item):
        del row["task"], row["item"]
    return row


def _known(conversation: Conversation) -> dict[str, Any]:
    known = {"task": conversation.task, "item": conversation.item}
    return known | {
        key: value
        for key, value in (("reward", conversation.reward), ("success", conversation.success))
        if value is not None
    }


def _as_rlds(episode: Episode, iteration: int) -> dict[str, Any]:
    """One step for each response, and a last one that has the observation after it, if it is known, and no action.

    Rewards are those of a step's action. The discount is 0 from the action on that ends an episode, and 1 where the
    episode was truncated, whose last observation is not terminal.
    """
    terminal = episode.truncation is None
    last = len(episode.turns) - 1
    steps = [
        {
            "observation": turn.message,
            "action": turn.response,
            "reward": turn.extra["reward"],
            "discount": 0.0 if terminal and number == last else 1.0,
            "is_first": number == 0,
            "is_last": False,
            "is_terminal": False,
        }
        for number, turn in enumerate(episode.turns)
    ]
    end = {"observation": episode.unanswered or "", "action": "", "reward": 0.0, "discount": 0.0 if terminal else 1.0}
    steps.append(end | {"is_first": False, "is_last": True, "is_terminal": terminal})
    return {
        "steps": steps,
        "task": episode.task,
        "item": episode.extra["level_id"],
        "success": episode.success,
        "iteration": iteration,
    }
