"""Prompt styles: which words stand where, in pieces, before any tokeniser is asked.

`ragen` tells everything that RAGEN's prompt tells (arXiv 2504.20073, appendix on prompts, and its context manager) in
other words: task, legend, actions, budget, then per turn the reward, the turn's number, the state, the actions left
and the format. `compact` tells the legend and the action names once, then per turn the state and the actions left.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

from agentrl_jax.text.pieces import Piece, Special
from agentrl_jax.text.tokenizer import Tokenizer


@dataclasses.dataclass(frozen=True)
class Task:
    """What a style has to tell; the fields are those of `compile_prompt`."""

    instruction: str
    legend: tuple[tuple[str, str], ...]
    actions: tuple[str, ...]
    think: bool
    separator: str
    max_actions_budget: int
    response_words: int


@dataclasses.dataclass(frozen=True)
class Chat:
    """How a tokeniser's special tokens mark who speaks.

    Attributes:
        begin: opens every conversation.
        before_role: stands before the name of a role.
        after_role: stands after it.
        roles: the names of the roles system, user and assistant.
        end: name of the end-of-turn token.
        after_end: stands after it, before the next role.
        headers_suffice: a message of the system or the user may end without `end`, where the next header begins.
    """

    begin: tuple[Piece, ...]
    before_role: tuple[Piece, ...]
    after_role: tuple[Piece, ...]
    roles: tuple[Piece, Piece, Piece]
    end: str
    after_end: tuple[Piece, ...]
    headers_suffice: bool

    def header(self, role: Literal["system", "user", "assistant"]) -> tuple[Piece, ...]:
        """Returns the pieces that say who speaks next."""
        name = self.roles[("system", "user", "assistant").index(role)]
        return (*self.before_role, name, *self.after_role)

    def close(self) -> tuple[Piece, ...]:
        """Returns the pieces that end a message."""
        return (Special(self.end), *self.after_end)


@dataclasses.dataclass(frozen=True)
class Part:
    """One part of a message.

    Attributes:
        kind: fixed pieces, or a value that the engine fills in.
        pieces: the fixed pieces; empty for a value.
        when: in every message, in all but the first, or in all but the first unless the reply ended by itself.
    """

    kind: Literal["text", "observation", "turn", "actions_left", "reward"]
    pieces: tuple[Piece, ...] = ()
    when: Literal["always", "later", "unended"] = "always"


@dataclasses.dataclass(frozen=True)
class PromptStyle:
    """A style of prompt.

    Attributes:
        name: as `get_style` knows it.
        prefix: pieces that open a trajectory.
        message: parts inserted before every reply, without the forced tag.
        spaced: whether a canonical reply has spaces around the separator.
    """

    name: str
    prefix: Callable[[Task, Chat], tuple[Piece, ...]]
    message: Callable[[Task, Chat], tuple[Part, ...]]
    spaced: bool


def get_style(name: str) -> PromptStyle:
    """Returns the style called `name`.

    Raises:
        ValueError: there is no such style.
    """
    if name not in STYLES:
        raise ValueError(f"prompt style {name!r}; expected one of {', '.join(STYLES)}")
    return STYLES[name]


def chat_format(tokenizer: Tokenizer) -> Chat:
    """Returns how conversations are marked, judged by the tokeniser's special tokens.

    Raises:
        ValueError: the tokeniser has no special tokens for a conversation.
    """
    end = tokenizer.special_name(tokenizer.end_of_turn_id)
    names: tuple[Piece, Piece, Piece] = ("system", "user", "assistant")
    if tokenizer.has_special("<|im_start|>"):
        return Chat((), (Special("<|im_start|>"),), ("\n",), names, end, ("\n",), False)
    if tokenizer.has_special("<|start_header_id|>"):
        before, after = (Special("<|start_header_id|>"),), (Special("<|end_header_id|>"), "\n\n")
        return Chat((Special("<|begin_of_text|>"),), before, after, names, end, (), False)
    if tokenizer.has_special("<|user|>") and tokenizer.has_special("<|system|>"):
        roles: tuple[Piece, Piece, Piece] = (Special("<|system|>"), Special("<|user|>"), Special("<|assistant|>"))
        return Chat((), (), (), roles, end, (), True)
    raise ValueError(
        "the tokeniser has no special tokens for a conversation; expected <|im_start|>, <|start_header_id|> or "
        "<|user|> and <|system|>; use the tokeniser of an instruction-tuned model"
    )


def _compact_prefix(task: Task, chat: Chat) -> tuple[Piece, ...]:
    legend = " ".join(f"{symbol} {meaning}" for symbol, meaning in task.legend)
    text = "\n".join(line for line in (legend, " ".join(task.actions)) if line)
    return (*chat.begin, *chat.header("system"), text, *(() if chat.headers_suffice else chat.close()))


def _compact_message(task: Task, chat: Chat) -> tuple[Part, ...]:
    closing = () if chat.headers_suffice else chat.close()
    return (
        Part("text", (Special(chat.end),), when="unended"),
        Part("text", chat.after_end, when="later"),
        Part("text", chat.header("user")),
        Part("observation"),
        Part("text", ("\n",)),
        Part("actions_left"),
        Part("text", (*closing, *chat.header("assistant"))),
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
        *chat.begin,
        *chat.header("system"),
        "You solve tasks step by step and answer in the requested format.",
        *chat.close(),
        *chat.header("user"),
        "\n".join(line for line in lines if line) + "\n\n",
    )


def _ragen_message(task: Task, chat: Chat) -> tuple[Part, ...]:
    thought = "<think> your reasoning </think>" if task.think else ""
    request = (
        f".\nReply with {thought}<answer> your actions </answer> and nothing else, "
        f"in at most {task.response_words} words."
    )
    return (
        Part("text", (Special(chat.end),), when="unended"),
        Part("text", (*chat.after_end, *chat.header("user"), "Reward:\n"), when="later"),
        Part("reward", when="later"),
        Part("text", ("\n\n",), when="later"),
        Part("text", ("Turn ",)),
        Part("turn"),
        Part("text", (":\nState:\n",)),
        Part("observation"),
        Part("text", ("\nActions left: ",)),
        Part("actions_left"),
        Part("text", (request, *chat.close(), *chat.header("assistant"))),
    )


STYLES: dict[str, PromptStyle] = {
    "compact": PromptStyle("compact", _compact_prefix, _compact_message, spaced=False),
    "ragen": PromptStyle("ragen", _ragen_prefix, _ragen_message, spaced=True),
}
"""The styles by name."""
