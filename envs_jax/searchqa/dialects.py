"""How searchqa over a corpus is played: texts, rewards and limits of the projects that published results with it."""

import dataclasses
import re
from collections.abc import Sequence

from envs_jax.searchqa.judging import EXACT, F1


@dataclasses.dataclass(frozen=True)
class Dialect:
    """One way to play. Observations are texts with passages between `opened` and `closed`, one a line.

    Attributes:
        actions: names of the two commands, to search and to answer.
        templates: text before and after the argument of each.
        opened: text before the passages of a search.
        closed: text after them.
        refused: what a response without a command is told.
        wrong: what is told after a wrong answer, which may be corrected; empty: it ends the episode.
        reward: rule of `judging.RULES`.
        threshold: share of words that `F1` asks for.
        results: most passages of a search.
        max_steps: actions of an episode, searches and answers.
        characters: most characters of the passages of a search; whole passages are left out, and a longer one is cut.
    """

    actions: tuple[str, str]
    templates: tuple[tuple[str, str], tuple[str, str]]
    opened: str
    closed: str
    refused: str
    wrong: str = ""
    reward: str = EXACT
    threshold: float = 0.3
    results: int = 3
    max_steps: int = 4
    characters: int | None = None


_TAGS = (("<search>", "</search>"), ("<answer>", "</answer>"))
_CALLS = (("<answer>search[", "]</answer>"), ("<answer>finish[", "]</answer>"))

DIALECTS = {
    "search_r1": Dialect(
        actions=("search", "answer"),
        templates=_TAGS,
        opened="\n\n<information>",
        closed="</information>\n\n",
        refused="\nThis was no valid action. Write <search>words</search> to search, or <answer>words</answer> to "
        "answer.\n",
    ),
    "agentgym": Dialect(
        actions=("search", "answer"),
        templates=_TAGS,
        opened="<information>",
        closed="</information>",
        refused="That was no valid action. Write a query between <search> and </search> to look something up, or the "
        "answer between <answer> and </answer>.",
        wrong="The answer is wrong. Try again.",
        max_steps=5,
    ),
    "ragen": Dialect(
        actions=("search", "finish"),
        templates=_CALLS,
        opened="Search results:\n",
        closed="\nActions: search[words], finish[answer]",
        refused="That was no valid action. Actions: search[words], finish[answer]",
        reward=F1,
        threshold=0.3,
        results=5,
        max_steps=10,
        characters=4000,
    ),
}
"""By name: Search-R1 (arXiv 2503.09516, v0.3), AgentGym's SearchQA (2509.08755), RAGEN's v2 (2504.20073).

What they do otherwise: Search-R1 allows a last generation after the fourth action; RAGEN repeats the query in what it
shows, and takes text without a command for an answer.
"""

_THOUGHT = ("<think>", "</think>")


def control_texts(dialect: Dialect) -> tuple[str, ...]:
    """What text of a corpus must not have, since an agent, or what reads it, could take it for a command or for the end
    of the passages."""
    around = (text.strip() for text in (dialect.opened, dialect.closed) if text.strip().startswith("<"))
    return (*(text for pair in dialect.templates for text in pair), *around, *_THOUGHT)


def escaped(text: str, controls: Sequence[str]) -> str:
    """A text with a space after the first character of every control text in it, as in `< search>`."""
    return re.sub("|".join(map(re.escape, controls)), lambda found: f"{found[0][0]} {found[0][1:]}", text)
