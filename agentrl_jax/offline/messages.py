"""Rows of JSON as conversations and preference pairs; what is not understood is refused by its place and its key.

A row is an object with `messages` (`role`, `content`, optionally `loss`), or one of AgentGym's with `conversations`
(`from` and `value`, or `role` and `content`) and an `item_id`, or, for a pair, one with `prompt`, `chosen` and
`rejected`.
"""

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np

from agentrl_jax.errors import UserError, shortened, shown
from agentrl_jax.offline.conversations import ROLES, Conversation, Message, PreferencePair

MAX_MESSAGES = 4096
"""Messages of a conversation at most."""

_LARGEST_REWARD = float(np.finfo(np.float32).max)
_OWN = ("messages", "task", "item", "reward", "success")
_AGENTGYM = ("conversations", "item_id", "task", "item", "reward", "success")
_PAIR = ("id", "prompt", "chosen", "rejected", "task", "item")
_FROM = {"human": "user", "gpt": "assistant", "system": "system"}
_TOOLS = ("tool_calls", "function_call", "tool_call_id", "tools")


def refuse(where: str, key: str, value: Any, why: str) -> NoReturn:
    """Refuses the value of a key of a row; `where` is its file and line."""
    raise UserError(f"{where}: {shortened(key)} is {shown(value)}, {why}", key=key, value=value)


def conversation_of(row: Any, where: str) -> Conversation:
    """The conversation of a row.

    Raises:
        UserError: the row is none; the message begins with `where`.
    """
    if not isinstance(row, dict):
        refuse(where, "the row", row, "expected an object with messages")
    if "messages" in row:
        _known(row, _OWN, "", where)
        task, item = (_text(row, key, where) for key in ("task", "item"))
        messages = _messages(row, "messages", where)
    elif "conversations" in row:
        _known(row, _AGENTGYM, "", where)
        task, item = _named(row, where)
        messages = _acknowledged(row["conversations"], _messages(row, "conversations", where))
    else:
        _no_conversation(row, where)
    _in_order(messages, where)
    return Conversation(messages, task, item, _reward(row, where), _success(row, where), where)


def pair_of(row: Any, where: str) -> PreferencePair:
    """The preference pair of a row.

    Raises:
        UserError: the row is none; the message begins with `where`.
    """
    if not isinstance(row, dict):
        refuse(where, "the row", row, "expected an object with prompt, chosen and rejected")
    _known(row, _PAIR, "", where)
    for key in ("prompt", "chosen", "rejected"):
        if key not in row:
            refuse(where, key, None, "expected a list of messages; a pair has prompt, chosen and rejected")
    number = row.get("id", "")
    if isinstance(number, bool) or not isinstance(number, str | int):
        refuse(where, "id", number, "expected a text or an integer")
    prompt, chosen, rejected = (_messages(row, key, where) for key in ("prompt", "chosen", "rejected"))
    if prompt and prompt[-1].role == "assistant":
        refuse(where, "prompt", prompt[-1].role, "as its last role; expected a message of the user at the end")
    for side in (chosen, rejected):
        _in_order((*prompt, *side), where)
        if not side:
            refuse(where, "chosen" if side is chosen else "rejected", [], "expected at least one reply")
    task, item = (_text(row, key, where) for key in ("task", "item"))
    return PreferencePair(prompt, chosen, rejected, str(number), task, item, where)


def item_of(row: Any, where: str) -> str:
    """The `item_id` of a row of AgentEval or AgentGym-RL-Data-ID.

    Raises:
        UserError: the row has none, or has a conversation.
    """
    if not isinstance(row, dict) or "item_id" not in row:
        refuse(where, "the row", row, "expected an object with item_id")
    _known(row, ("item_id", "conversations"), "", where)
    if row.get("conversations"):
        refuse(where, "conversations", len(row["conversations"]), "messages; expected a list of items, without any")
    _named(row, where)
    return row["item_id"]


def item_id(task: str, item: str) -> str:
    """AgentGym's name of an item: `<task>_<item>`."""
    return f"{task}_{item}" if task else item


def split_item_id(name: str) -> tuple[str, str]:
    """The task and the item of AgentGym's name, whose item is what follows the last `_`."""
    task, _, item = name.rpartition("_")
    return task, item


def _named(row: Mapping[str, Any], where: str) -> tuple[str, str]:
    """The task and the item of a row of AgentGym; keys of their own win over those in `item_id`."""
    if not isinstance(row.get("item_id"), str) or not row["item_id"]:
        refuse(where, "item_id", row.get("item_id"), "expected a text such as babyai_12")
    _text(row, "item_id", where)
    task, item = split_item_id(row["item_id"])
    return (_text(row, "task", where) if "task" in row else task), (
        _text(row, "item", where) if "item" in row else item
    )


def _no_conversation(row: Mapping[str, Any], where: str) -> NoReturn:
    if "chosen" in row:
        refuse(where, "chosen", "given", "which makes the row a preference pair; expected a conversation")
    if "item_id" in row:
        refuse(where, "conversations", None, "expected messages; a list of items names levels to play, not to learn")
    refuse(where, "messages", None, "expected a list of objects with role and content")


def _messages(row: Mapping[str, Any], name: str, where: str) -> tuple[Message, ...]:
    found = row[name]
    if not isinstance(found, list):
        refuse(where, name, found, "expected a list of messages")
    if len(found) > MAX_MESSAGES:
        refuse(where, name, len(found), f"messages, expected at most {MAX_MESSAGES}; split the conversation")
    return tuple(_message(one, f"{name}.{number}", where) for number, one in enumerate(found))


def _message(one: Any, place: str, where: str) -> Message:
    if not isinstance(one, dict):
        refuse(where, place, one, "expected an object with role and content")
    of_agentgym = "from" in one
    role_key, text_key = ("from", "value") if of_agentgym else ("role", "content")
    _known(one, (role_key, text_key, "loss"), f"{place}.", where)
    role = one.get(role_key)
    roles = tuple(_FROM) if of_agentgym else ROLES
    if role in ("tool", "function", "ipython"):
        refuse(where, f"{place}.{role_key}", role, "but tools are not supported; write their results as the user's")
    if role not in roles:
        refuse(where, f"{place}.{role_key}", role, f"expected one of {', '.join(roles)}")
    role = _FROM[role] if of_agentgym else role
    if not isinstance(one.get(text_key), str):
        refuse(where, f"{place}.{text_key}", one.get(text_key), "expected a text")
    loss = one.get("loss", True if role == "assistant" else None)
    if role == "assistant" and not isinstance(loss, bool):
        refuse(where, f"{place}.loss", loss, "expected true or false: whether the reply is trained on")
    if role != "assistant" and loss not in (None, False):
        refuse(where, f"{place}.loss", loss, "expected null, as only replies are trained on")
    return Message(role, _text(one, text_key, where, f"{place}."), bool(loss))


def _acknowledged(rows: list[Any], messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """AgentGym-RL's rollout logs have no `loss`: there, the first reply is the fixed one to the manual."""
    if len(messages) > 2 and messages[0].role == "user" and not any("loss" in row or "from" in row for row in rows):
        return (messages[0], Message("assistant", messages[1].content, loss=False), *messages[2:])
    return messages


def _in_order(messages: tuple[Message, ...], where: str) -> None:
    expected = "user"
    for number, message in enumerate(messages):
        if message.role == "system" and number == 0:
            continue
        if message.role != expected:
            why = f"expected {expected}: a system message or none, then user and assistant in turns"
            refuse(where, f"role {number}", message.role, why)
        expected = "assistant" if expected == "user" else "user"
    if not any(message.role == "assistant" for message in messages):
        refuse(where, "messages", f"{len(messages)} without a reply", "expected at least one of the assistant")


def _known(row: Mapping[str, Any], keys: tuple[str, ...], place: str, where: str) -> None:
    for key in row:
        if key in _TOOLS:
            refuse(where, place + key, "given", "but tool calls are not supported; write them into the text")
        if key not in keys:
            refuse(where, place + key, row[key], f"an unknown key; expected {', '.join(keys)}, leave it out")


def _text(row: Mapping[str, Any], key: str, where: str, place: str = "") -> str:
    text = row.get(key, "")
    if not isinstance(text, str):
        refuse(where, place + key, text, "expected a text")
    try:
        text.encode()
    except UnicodeEncodeError:
        refuse(where, place + key, text, "which has half of a surrogate pair; expected Unicode text")
    return text


def _reward(row: Mapping[str, Any], where: str) -> float | None:
    value = row.get("reward")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST_REWARD:
        refuse(where, "reward", value, "expected null or a number that float32 can hold")
    return float(value)


def _success(row: Mapping[str, Any], where: str) -> bool | None:
    value = row.get("success")
    if value is None or isinstance(value, bool):
        return value
    if "conversations" in row and value in (0, 1):  # AgentGym's evaluator writes numbers
        return bool(value)
    refuse(where, "success", value, "expected true, false or null")
