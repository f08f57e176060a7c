"""From what an agent writes to what an environment is asked to do."""

import dataclasses
import re
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Reading:
    """What was found in a reply.

    Attributes:
        action: sent to the environment; None when the reply cannot be sent.
        complaint: without an action, what the agent is told in place of an observation.
    """

    action: str | None
    complaint: str = ""


Reader = Callable[[str], Reading]

MANY_ACTIONS = "Error: Only one 'Action' is allowed per response. Please adjust your response."
"""What AgentGym's clients of BabyAI and TextCraft tell an agent that gives several actions."""

NO_FENCE = "Cannot parse action from response. Put one action between two lots of three backticks: ```click [7]```."
"""Starts as AgentGym's client of WebArena does; the rest are our own words."""

_MARK = "Action:"
_FENCE = "```"
_LINE = re.compile(r"Action:\s*([^\n]*)")
_OUTSIDE = re.compile(r"[^A-Za-z0-9, ]+")


def rule_r(reply: str) -> Reading:
    """BabyAI and TextCraft: the one line after `Action:`, without signs.

    White space after the mark is skipped, line ends too, so `Action:` may stand alone on its line. Several actions are
    refused; without one the empty action is sent. All but letters and digits of ASCII, commas and blanks is deleted.
    """
    found = _LINE.findall(reply)
    if len(found) > 1:
        return Reading(None, MANY_ACTIONS)
    return Reading(" ".join(_OUTSIDE.sub("", "".join(found)).split()))


def last_action(reply: str) -> Reading:
    """SciWorld and ALFWorld: what follows the last `Action:`, without an end mark; the empty action where it lacks."""
    return Reading(without_end(reply).rpartition(_MARK)[2].strip() if _MARK in reply else "")


def shop_action(reply: str) -> Reading:
    """WebShop: as `last_action`; without `Action:` a reply with `search[` or `click[` is an action as a whole."""
    if _MARK not in reply and ("search[" in reply or "click[" in reply):
        return Reading(without_end(reply))
    return last_action(reply)


def first_action(reply: str) -> Reading:
    """Maze and Wordle: what stands between the first `Action:` and a second one; without any, the whole reply."""
    pieces = without_end(reply).split(_MARK, 2)
    return Reading(pieces[1 if len(pieces) > 1 else 0].strip())


def raw(reply: str) -> Reading:
    """SearchQA and the tools: the reply as it is; the environment looks for the action."""
    return Reading(reply)


def fenced(reply: str) -> Reading:
    """WebArena: the reply as it is, if it has two lots of three backticks."""
    return Reading(reply) if reply.count(_FENCE) > 1 else Reading(None, NO_FENCE)


def sql_fence(reply: str) -> Reading:
    """SQLGym: what follows the last opening of an `sql` block, up to its end; without one, all before a fence."""
    return Reading(reply.rpartition(_FENCE + "sql")[2].partition(_FENCE)[0].strip())


def react_reply(action: str, thought: str = "") -> str:
    """A reply in the format of ReAct (arXiv 2210.03629), as AgentGym's trajectories have it."""
    return f"Thought:\n{thought}\n\nAction:\n{action}"


def without_end(reply: str) -> str:
    """The reply without white space around it and without the end mark that some models write out."""
    return reply.strip().removesuffix("</s>").rstrip()


READERS: dict[str, Reader] = {
    "webshop": shop_action,
    "alfworld": last_action,
    "babyai": rule_r,
    "sciworld": last_action,
    "textcraft": rule_r,
    "webarena": fenced,
    "sqlgym": sql_fence,
    "maze": first_action,
    "wordle": first_action,
    "weather": raw,
    "todo": raw,
    "movie": raw,
    "sheet": raw,
    "academia": raw,
    "searchqa": raw,
}
"""How AgentGym's client of each environment finds the action in a reply."""
