"""Finds the action in an agent's response, as AgentGym's clients do."""

import dataclasses
import re
from collections.abc import Callable

from agentrl_jax.service_names import text_service


@dataclasses.dataclass(frozen=True)
class ParsedAction:
    """The action found in a response, maybe an empty one; if there is none, what the agent is shown instead."""

    action: str | None
    complaint: str = ""


Reader = Callable[[str], ParsedAction]

MANY_ACTIONS = "Error: Only one 'Action' is allowed per response. Please adjust your response."
"""What AgentGym's clients of BabyAI and TextCraft reply to several actions."""

NO_FENCE = "Cannot parse action from response. Put one action between two lots of three backticks: ```click [7]```."
"""Begins like the message of AgentGym's WebArena client; the rest is our wording."""

_MARK = "Action:"
_FENCE = "```"
_LINE = re.compile(r"Action:\s*([^\n]*)")
_OUTSIDE = re.compile(r"[^A-Za-z0-9, ]+")


def single_line_action(response: str) -> ParsedAction:
    """BabyAI and TextCraft: the one line after `Action:`, without special characters.

    White space after the mark is skipped, newlines included, so `Action:` may be alone on its line. Several actions are
    refused; if there is none, the empty action is sent. All but ASCII letters, digits, commas and blanks is deleted.
    """
    actions = _LINE.findall(response)
    if len(actions) > 1:
        return ParsedAction(None, MANY_ACTIONS)
    return ParsedAction(" ".join(_OUTSIDE.sub("", "".join(actions)).split()))


def last_action(response: str) -> ParsedAction:
    """SciWorld and ALFWorld: the text after the last `Action:`, without an end mark; empty if there is no `Action:`."""
    return ParsedAction(without_end(response).rpartition(_MARK)[2].strip() if _MARK in response else "")


def shop_action(response: str) -> ParsedAction:
    """WebShop: as `last_action`; without `Action:`, a response with `search[` or `click[` is itself the action."""
    if _MARK not in response and ("search[" in response or "click[" in response):
        return ParsedAction(without_end(response))
    return last_action(response)


def first_action(response: str) -> ParsedAction:
    """The games of LMRL-Gym: the text between the first `Action:` and a second one; without any, the whole response."""
    pieces = without_end(response).split(_MARK, 2)
    return ParsedAction(pieces[1 if len(pieces) > 1 else 0].strip())


def raw(response: str) -> ParsedAction:
    """SearchQA and the tools: the unchanged response; the environment finds the action."""
    return ParsedAction(response)


def fenced(response: str) -> ParsedAction:
    """WebArena: the unchanged response, if it has two lots of three backticks."""
    return ParsedAction(response) if response.count(_FENCE) > 1 else ParsedAction(None, NO_FENCE)


def sql_fence(response: str) -> ParsedAction:
    """SQLGym: the text after the last opening of an `sql` block, up to its end; without one, all before a fence."""
    return ParsedAction(response.rpartition(_FENCE + "sql")[2].partition(_FENCE)[0].strip())


def react_response(action: str, thought: str = "") -> str:
    """A response in the ReAct format (arXiv 2210.03629), as in AgentGym's trajectories."""
    return f"Thought:\n{thought}\n\nAction:\n{action}"


def without_end(response: str) -> str:
    """The response without surrounding white space and without the end mark that some models write out."""
    return response.strip().removesuffix("</s>").rstrip()


_REMOTE: dict[str, Reader] = {
    "webshop": shop_action,
    "webarena": fenced,
    "sqlgym": sql_fence,
    "alfworld": last_action,
    **dict.fromkeys(("weather", "todo", "movie", "sheet", "academia", "searchqa"), raw),
}
"""Of the environments that are played on AgentGym's servers only; others have folders of their own."""


def reader_of(name: str) -> Reader | None:
    """How AgentGym's client of an environment finds the action in a response; None if it has no such client."""
    if own := text_service(name, "protocol"):
        found: Reader = own.READ
        return found
    return _REMOTE.get(name)
