"""Prompt styles: the text of prefix and messages as pieces, independent of the tokenizer.

`ragen` has the content of RAGEN's prompt (arXiv 2504.20073, appendix on prompts, and its context manager) in other
words: task, legend, actions, budget, then per turn the reward, the turn number, the state, the actions left and the
format. `compact` has the legend and the action names once, then per turn the state and the actions left. `chat` has
the task as a system message, then per turn only the environment's text; `bare` has no task either.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

from agentrl_jax.text.chat import Chat
from agentrl_jax.text.pieces import Piece


@dataclasses.dataclass(frozen=True)
class Task:
    """Content of a prompt; the fields are arguments of `compile_prompt`, with `actions` those to be listed."""

    instruction: str
    legend: tuple[tuple[str, str], ...]
    actions: tuple[str, ...]
    think: bool
    separator: str
    max_actions_budget: int
    response_words: int


@dataclasses.dataclass(frozen=True)
class Segment:
    """One part of a message.

    Attributes:
        kind: fixed pieces, or a value that the engine fills in.
        pieces: the fixed pieces; empty for a value.
        when: in every message, in the first, in all but the first, or in all but the first if the response before did
            not end by itself.
    """

    kind: Literal["text", "observation", "turn", "actions_left", "reward"]
    pieces: tuple[Piece, ...] = ()
    when: Literal["always", "first", "later", "unended"] = "always"


@dataclasses.dataclass(frozen=True)
class PromptStyle:
    """A style of prompt.

    Attributes:
        name: name for `get_style`.
        prefix: pieces at the start of an episode.
        message: parts inserted before every response, without the forced tag.
        spaced: whether a canonical response has spaces around the separator.
    """

    name: str
    prefix: Callable[[Task, Chat], tuple[Piece, ...]]
    message: Callable[[Task, Chat], tuple[Segment, ...]]
    spaced: bool


def get_style(name: str) -> PromptStyle:
    """Returns the style called `name`.

    Raises:
        ValueError: there is no such style.
    """
    if name not in STYLES:
        raise ValueError(f"prompt style {name!r}; expected one of {', '.join(STYLES)}")
    return STYLES[name]


def _later(chat: Chat) -> tuple[Segment, ...]:
    """The end of the previous response, and the header of the message."""
    closing = (Segment("text", chat.unended, when="unended"), Segment("text", chat.after_end, when="later"))
    if chat.first_user == chat.user:
        return (*closing, Segment("text", chat.user))
    return (*closing, Segment("text", chat.first_user, when="first"), Segment("text", chat.user, when="later"))


def _compact_prefix(task: Task, chat: Chat) -> tuple[Piece, ...]:
    legend = " ".join(f"{symbol} {meaning}" for symbol, meaning in task.legend)
    text = "\n".join(line for line in (legend, " ".join(task.actions)) if line)
    return chat.system(text, brief=True)


def _compact_message(task: Task, chat: Chat) -> tuple[Segment, ...]:
    closing = () if chat.headers_suffice else chat.user_end
    return (
        *_later(chat),
        Segment("observation"),
        Segment("text", ("\n",)),
        Segment("actions_left"),
        Segment("text", (*closing, *chat.response)),
    )


def _ragen_prefix(task: Task, chat: Chat) -> tuple[Piece, ...]:
    legend = ", ".join(f"{symbol} is {meaning}" for symbol, meaning in task.legend)
    lines = [
        task.instruction,
        f"Symbols in the state: {legend}." if legend else "",
        f"Available actions: {', '.join(task.actions)}." if task.actions else "",
        f"You can make at most {task.max_actions_budget} actions in all. "
        f"Put {task.separator} between actions when you give several.",
    ]
    return (
        *chat.system("You solve tasks step by step and answer in the requested format."),
        *chat.first_user,
        "\n".join(line for line in lines if line) + "\n\n",
    )


def _ragen_message(task: Task, chat: Chat) -> tuple[Segment, ...]:
    thought = "<think> your reasoning </think>" if task.think else ""
    request = (
        f".\nResponse with {thought}<answer> your actions </answer> and nothing else, "
        f"in at most {task.response_words} words."
    )
    return (
        Segment("text", chat.unended, when="unended"),
        Segment("text", (*chat.after_end, *chat.user, "Reward:\n"), when="later"),
        Segment("reward", when="later"),
        Segment("text", ("\n\n",), when="later"),
        Segment("text", ("Turn ",)),
        Segment("turn"),
        Segment("text", (":\nState:\n",)),
        Segment("observation"),
        Segment("text", ("\nActions left: ",)),
        Segment("actions_left"),
        Segment("text", (request, *chat.user_end, *chat.response)),
    )


def _chat_prefix(task: Task, chat: Chat) -> tuple[Piece, ...]:
    return (*chat.system(task.instruction), *chat.first_user)


def _bare_prefix(task: Task, chat: Chat) -> tuple[Piece, ...]:
    return chat.open_user


def _chat_message(task: Task, chat: Chat) -> tuple[Segment, ...]:
    return (
        Segment("text", chat.unended, when="unended"),
        Segment("text", (*chat.after_end, *chat.user), when="later"),
        Segment("observation"),
        Segment("text", (*chat.user_end, *chat.response)),
    )


STYLES: dict[str, PromptStyle] = {
    "compact": PromptStyle("compact", _compact_prefix, _compact_message, spaced=False),
    "ragen": PromptStyle("ragen", _ragen_prefix, _ragen_message, spaced=True),
    "chat": PromptStyle("chat", _chat_prefix, _chat_message, spaced=False),
    "bare": PromptStyle("bare", _bare_prefix, _chat_message, spaced=False),
}
"""The styles by name."""
