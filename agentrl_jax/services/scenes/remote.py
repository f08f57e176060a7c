"""AgentGym's environments that only run on its servers: pages, documents and places as their texts name them."""

import re
from collections.abc import Iterable

from agentrl_jax.services.scenes import Seen
from agentrl_jax.services.scenes.reading import Entry, first_match, last_answer, last_match, listed
from envs_jax.scenes import Scene, text_scene

_QUESTION = re.compile(r"Question: ([^\n]+)")
_TAGGED = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_DOCUMENT = re.compile(
    r"""Doc [0-9]+\(Title: ("[^\n]{0,300}?"|[^\n]{0,300}?)\) ?(.*?)(?=\n?Doc [0-9]+\(Title: |\Z)""", re.DOTALL
)


def searchqa(seen: Seen) -> Scene | None:
    """The question, what was searched and answered, and the documents of the last search; None without a question."""
    question = first_match(_QUESTION, seen.texts)
    if question is None:
        return None
    tried: dict[str, list[Entry]] = {"search": [], "answer": []}
    documents: list[Entry] = []
    for action, answer in seen.answers:
        if tagged := _TAGGED.search(action):
            tried[tagged[1]].append((tagged[2], ""))
        found = answer.partition("<information>")[2].rpartition("</information>")[0]
        documents = _DOCUMENT.findall(found) if found else documents
    lists = [
        *listed("Question", [(question[1], "")]),
        *listed("Searches", tried["search"], "none yet"),
        *listed("Documents", documents),
        *listed("Answers", tried["answer"]),
    ]
    return text_scene([], lists)


_TABS = re.compile(r"^(Tab [0-9]+(?: \(current\))?: [^\n]*)$", re.MULTILINE)
_FIELD = re.compile(r"^(URL|OBJECTIVE|PREVIOUS ACTION): ([^\n]*)$", re.MULTILINE)
_ELEMENT = re.compile(r"^(\t*)\[([0-9]+)\] ([^\n]+)$", re.MULTILINE)


def webarena(seen: Seen) -> Scene | None:
    """The objective, the open tabs, and the elements of the page by number; None without an accessibility tree."""
    text = seen.texts[-1]
    elements = _ELEMENT.findall(text)
    if not elements:
        return None
    fields = {name: value for shown in seen.texts for name, value in _FIELD.findall(shown)}
    tabs = _TABS.search(text)
    lists = [
        *listed("Objective", [(fields["OBJECTIVE"], "")] if fields.get("OBJECTIVE") else []),
        *listed("Page", [(fields["URL"], "")] if fields.get("URL") else []),
        *listed("Tabs", [(tab, "") for tab in tabs[1].split(" | ")] if tabs else []),
        *listed("Elements", ((f"{'· ' * len(depth)}{element}", f"[{number}]") for depth, number, element in elements)),
    ]
    return text_scene([], lists)


def webshop(seen: Seen) -> Scene | None:
    """The instruction and the parts of the page; None if the last text is no page."""
    parts = [part.strip() for part in seen.texts[-1].split("[SEP]")]
    if len(parts) < 2:
        return None
    heading = next((number for number, part in enumerate(parts[:-1]) if part.endswith("Instruction:")), None)
    if heading is None:
        return text_scene([], listed("Page", _plain(parts)))
    rest = [*parts[:heading], *parts[heading + 2 :]]
    return text_scene([], [*listed("Instruction", _plain([parts[heading + 1]])), *listed("Page", _plain(rest))])


_TASK = re.compile(r"Your task is to: ([^\n]+)")
_PLACE = re.compile(r"(?:On|In) the ([a-z]+ [0-9]+), you see ([^\n.]+)\.|The ([a-z]+ [0-9]+) is (closed|open)\.")
_TAKEN = re.compile(r"You pick up the ([a-z]+ [0-9]+) from")
_PUT = re.compile(r"You (?:put|move) the ([a-z]+ [0-9]+) (?:in/on|in|on|to)")


def alfworld(seen: Seen) -> Scene | None:
    """The task, the place that was seen last, and what is carried; None without a task."""
    task = first_match(_TASK, seen.texts)
    if task is None:
        return None
    carried: dict[str, None] = {}
    for _, answer in seen.answers:
        if taken := _TAKEN.search(answer):
            carried[taken[1]] = None
        if put := _PUT.search(answer):
            carried.pop(put[1], None)
    place = last_match(_PLACE, [answer for _, answer in seen.answers])
    lists = listed("Task", [(task[1], "")])
    if place and place[1]:
        things = (re.sub(r"^an? ", "", thing) for thing in re.split(r", and |, | and ", place[2]))
        lists += listed(place[1], _plain(thing for thing in things if thing != "nothing"), "nothing")
    elif place:
        lists += listed(place[3], [(place[4], "")])
    lists += listed("Inventory", _plain(carried), "nothing")
    return text_scene(last_answer(seen.texts), lists)


def _plain(names: Iterable[str]) -> list[Entry]:
    return [(name, "") for name in names if name]
