"""AgentGym environments that are not implemented here: what is needed to play them on an existing server."""

import functools
from typing import NoReturn

from agentrl_jax.errors import BadValue
from agentrl_jax.services.action_parsing import raw, reader_of
from agentrl_jax.services.environment import Service
from agentrl_jax.services.environments.searchqa.answers import answer_in, normalized

_REACT = "Write your thoughts after Thought: and then a single action after Action:."
_TOOLS = (
    "Reach the goal with the tools that you are told of. Write your thoughts after Thought: and end with a line Action:"
    " NAME with Action Input: ARGUMENTS, the arguments as JSON. The action finish ends the task and takes the answer."
)

INSTRUCTIONS = {
    "alfworld": "You do a task in a household. Choose one of the actions that are listed at the start, such as go to "
    f"shelf 1, take mug 1 from shelf 1 or open fridge 1. {_REACT}",
    "webshop": "You shop by an instruction. The actions are search[words] and click[button], with buttons that the "
    f"page has; an action that it does not have changes nothing. {_REACT}",
    "sqlgym": "You are given a schema and a question. Explain how to find the answer, then give one line of SQL "
    "between ```sql and ```.",
    "searchqa": "Answer the question. First think between <think> and </think>. If you lack something, search for it "
    "between <search> and </search>, and read what is found between <information> and </information>. Once you are "
    "sure, answer between <answer> and </answer>, in as few words as can be.",
    "webarena": "You carry out a task in a browser, of which you see the accessibility tree, the address and the last "
    "action. Think, then give one action between two lots of three backticks: click [id], type [id] [text] [1], hover "
    "[id], press [keys], scroll [down], new_tab, tab_focus [index], close_tab, goto [url], go_back, go_forward, or "
    "stop [answer], which ends the task.",
    **dict.fromkeys(("weather", "movie", "academia", "todo", "sheet"), _TOOLS),
}
"""Instructions for the agent."""

TURNS = dict(zip(INSTRUCTIONS, (30, 10, 1, 5, 15, 10, 12, 12, 15, 15), strict=True))
"""Turn limits of AgentGym's own scripts."""


def remote_service(name: str) -> Service:
    """The service of one of `INSTRUCTIONS`. It has no scripted policies, and no local instances."""
    return Service(
        name=name,
        make=functools.partial(_refuse, name),
        items=2**31,
        instruction=INSTRUCTIONS[name],
        read=reader_of(name) or raw,
        marked=name not in ("searchqa", "webarena", "sqlgym"),
        turns=TURNS[name],
        solved=lambda answer: answer.reward == 1,  # the full reward comes in one turn
        success_rule="the last reward is 1",
        oracle=None,
        random=functools.partial(_refuse, name),
        remote=True,
        answer=searchqa_answer if name == "searchqa" else None,
    )


def searchqa_answer(action: str) -> str:
    """What stands in the last answer tags, in lower case and without punctuation and articles; empty for none."""
    return normalized(answer_in(action) or "")


def _refuse(name: str, *_: object) -> NoReturn:
    raise BadValue(f"{name} is not served here; give the address of AgentGym's server (env.url)", key=name)
