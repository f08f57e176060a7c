"""Prompt styles: the text of prefix and messages as pieces, independent of the tokenizer.

`ragen` paraphrases RAGEN's prompt (arXiv 2504.20073, appendix on prompts, and its context manager): task, legend,
actions, budget, then per turn the reward, the turn number, the state, the actions left and the format. `compact` has
the legend and the action names once, then per turn the state and the actions left. `chat` has the task as a system
message, then per turn only the environment's text; `bare` has no task either. The feedback of a retry, if there is one,
is written before what the environment says.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

from agentrl_jax.errors import BadValue
from agentrl_jax.text.chat import Chat
from agentrl_jax.text.pieces import Piece

FEEDBACK = "The attempt failed. Try again from the start.\n"
"""What an agent reads before it attempts the same level again; it says nothing about the level."""


@dataclasses.dataclass(frozen=True)
class Task:
    """Content of a prompt; the fields are arguments of `compile_prompt`, with the `actions` to be listed."""

    instruction: str
    legend: tuple[tuple[str, str], ...]
    actions: tuple[str, ...]
    think: bool
    separator: str
    """Between several actions of a response; empty if it has one."""
    max_actions_budget: int
    response_words: int
    feedback: str = ""
    """The text before the first observation of a retry; empty if episodes are never retried."""
    block: str = "<answer> your actions </answer>"
    """What a response has after its thought."""


@dataclasses.dataclass(frozen=True)
class Segment:
    """One part of a message: fixed `pieces` if its kind is "text", else a value that the engine fills in."""

    kind: Literal["text", "observation", "turn", "actions_left", "reward"]
    pieces: tuple[Piece, ...] = ()
    when: Literal["always", "first", "later", "unended", "retry"] = "always"
    """In which messages: "later" is all but the first, "unended" those after a response that did not end by itself,
    "retry" those that begin another attempt at the same level."""


@dataclasses.dataclass(frozen=True)
class PromptStyle:
    """A style of prompt: the pieces at the start of an episode, and the message before every response, untagged."""

    prefix: Callable[[Task, Chat], tuple[Piece, ...]]
    message: Callable[[Task, Chat], tuple[Segment, ...]]
    spaced: bool = False
    """Whether a canonical response has spaces around the separator."""
    omits_ends: bool = False
    """Whether messages of system and user have no end, where the chat format allows it."""
    closing: Callable[[Chat], tuple[Piece, ...]] = lambda chat: ()
    """The last pieces of the prefix, behind what it says: a hint is written before them."""


def get_style(name: str) -> PromptStyle:
    """Returns the style called `name`; ValueError if there is none."""
    if name not in STYLES:
        raise BadValue.of("prompt style", name, f"expected one of {', '.join(STYLES)}")
    return STYLES[name]


def _previous_end_and_header(chat: Chat) -> tuple[Segment, ...]:
    end = (Segment("text", chat.response_end, when="unended"), Segment("text", chat.after_end, when="later"))
    if chat.first_user_header == chat.user_header:
        return (*end, Segment("text", chat.user_header))
    first = Segment("text", chat.first_user_header, when="first")
    return (*end, first, Segment("text", chat.user_header, when="later"))


def _feedback(task: Task) -> tuple[Segment, ...]:
    return (Segment("text", (task.feedback,), when="retry"),) if task.feedback else ()


def _compact_prefix(task: Task, chat: Chat) -> tuple[Piece, ...]:
    legend = " ".join(f"{symbol} {meaning}" for symbol, meaning in task.legend)
    text = "\n".join(line for line in (legend, " ".join(task.actions)) if line)
    return chat.system(text, omit_end=True)


def _compact_closing(chat: Chat) -> tuple[Piece, ...]:
    return () if chat.ends_optional or chat.open_system is None else chat.system_end


def _compact_message(task: Task, chat: Chat) -> tuple[Segment, ...]:
    user_end = () if chat.ends_optional else chat.user_end
    return (
        *_previous_end_and_header(chat),
        *_feedback(task),
        Segment("observation"),
        Segment("text", ("\n",)),
        Segment("actions_left"),
        Segment("text", (*user_end, *chat.response_header)),
    )


def _ragen_prefix(task: Task, chat: Chat) -> tuple[Piece, ...]:
    legend = ", ".join(f"{symbol} is {meaning}" for symbol, meaning in task.legend)
    lines = [
        task.instruction,
        f"Symbols in the state: {legend}." if legend else "",
        f"Available actions: {', '.join(task.actions)}." if task.actions else "",
        f"You can make at most {task.max_actions_budget} actions in all."
        + f" Put {task.separator} between actions when you give several." * bool(task.separator),
    ]
    return (
        *chat.system("You solve tasks step by step and answer in the requested format."),
        *chat.first_user_header,
        "\n".join(line for line in lines if line) + "\n\n",
    )


def _ragen_message(task: Task, chat: Chat) -> tuple[Segment, ...]:
    thought = "<think> your reasoning </think>" if task.think else ""
    request = f".\nResponse with {thought}{task.block} and nothing else, in at most {task.response_words} words."
    return (
        Segment("text", chat.response_end, when="unended"),
        Segment("text", (*chat.after_end, *chat.user_header, "Reward:\n"), when="later"),
        Segment("reward", when="later"),
        Segment("text", ("\n\n",), when="later"),
        *_feedback(task),
        Segment("text", ("Turn ",)),
        Segment("turn"),
        Segment("text", (":\nState:\n",)),
        Segment("observation"),
        Segment("text", ("\nActions left: ",)),
        Segment("actions_left"),
        Segment("text", (request, *chat.user_end, *chat.response_header)),
    )


def _chat_prefix(task: Task, chat: Chat) -> tuple[Piece, ...]:
    return (*chat.system(task.instruction), *chat.first_user_header)


def _chat_message(task: Task, chat: Chat) -> tuple[Segment, ...]:
    return (
        Segment("text", chat.response_end, when="unended"),
        Segment("text", (*chat.after_end, *chat.user_header), when="later"),
        *_feedback(task),
        Segment("observation"),
        Segment("text", (*chat.user_end, *chat.response_header)),
    )


STYLES = {
    "compact": PromptStyle(_compact_prefix, _compact_message, omits_ends=True, closing=_compact_closing),
    "ragen": PromptStyle(_ragen_prefix, _ragen_message, spaced=True),
    "chat": PromptStyle(_chat_prefix, _chat_message),
    "bare": PromptStyle(lambda task, chat: chat.open_user, _chat_message),
}
"""The styles by name."""
