"""AgentGym's environments that only run on its servers: pages, documents and places as their texts name them."""

import re
from collections.abc import Iterable
from typing import Any

from agentrl_jax.services.scenes.reading import Entry, last_match, lines, listed
from envs_jax.scenes import Scene, text_scene

_QUESTION = re.compile(r"Question: ([^\n]+)")
_DOCUMENT = re.compile(r"""(?:\A|\n)Doc [0-9]{1,3}\(Title: ("[^\n]{0,300}?"|[^\n]{0,300}?)\) ?""")


class _SearchQAReader:
    """Keeps what was searched and answered, and the documents of the last search."""

    def __init__(self) -> None:
        self._question = ""
        self._tried: dict[str, list[Entry]] = {"search": [], "answer": []}
        self._documents: list[Entry] = []

    def read(self, action: str, text: str) -> Scene | None:
        """As `TextReader.read`."""
        if not self._question:
            question = last_match(_QUESTION, text)
            self._question = question[1] if question else ""
            if question is None:
                return None
        elif tagged := _tagged(action):
            self._tried[tagged[0]].append((tagged[1], ""))
        found = text.partition("<information>")[2].rpartition("</information>")[0] if action else ""
        if found:
            heads = list(_DOCUMENT.finditer(found))
            ends = [*(head.start() for head in heads[1:]), len(found)]
            self._documents = [(head[1], found[head.end() : end]) for head, end in zip(heads, ends, strict=False)]
        lists = [
            *listed("Question", [(self._question, "")]),
            *listed("Searches", self._tried["search"], "none yet"),
            *listed("Documents", self._documents),
            *listed("Answers", self._tried["answer"]),
        ]
        return text_scene([], lists)


def _tagged(action: str) -> tuple[str, str] | None:
    """The first pair of tags in an action, as the server reads it: search or answer, and what stands between."""
    found = {tag: action.find(f"<{tag}>") for tag in ("search", "answer")}
    for tag in sorted((tag for tag, at in found.items() if at >= 0), key=lambda tag: found[tag]):
        words, end, _ = action[found[tag] :].removeprefix(f"<{tag}>").partition(f"</{tag}>")
        if end:
            return tag, words
    return None


_TABS = re.compile(r"^(Tab [0-9]{1,3}(?: \(current\))?: [^\n]*)$", re.MULTILINE)
_FIELD = re.compile(r"^(URL|OBJECTIVE|PREVIOUS ACTION): ([^\n]*)$", re.MULTILINE)
_ELEMENT = re.compile(r"^(\t*)\[([0-9]{1,9})\] ([^\n]+)$", re.MULTILINE)


class _WebArenaReader:
    """Shows the objective, the open tabs, and the elements of the accessibility tree by number."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def read(self, action: str, text: str) -> Scene | None:
        """As `TextReader.read`."""
        self._fields |= dict(_FIELD.findall(text))
        elements = _ELEMENT.findall(text)
        if not elements:
            return None
        tabs = _TABS.search(text)
        lists = [
            *listed("Objective", _plain([self._fields.get("OBJECTIVE", "")])),
            *listed("Page", _plain([self._fields.get("URL", "")])),
            *listed("Tabs", _plain(tabs[1].split(" | ")) if tabs else []),
            *listed(
                "Elements", ((f"{'· ' * len(depth)}{element}", f"[{number}]") for depth, number, element in elements)
            ),
        ]
        return text_scene([], lists)


class _WebShopReader:
    """Shows the instruction and the parts of the page."""

    def read(self, action: str, text: str) -> Scene | None:
        """As `TextReader.read`."""
        parts = [part.strip() for part in text.split("[SEP]")]
        if len(parts) < 2:
            return None
        heading = next((number for number, part in enumerate(parts[:-1]) if part.endswith("Instruction:")), None)
        if heading is None:
            return text_scene([], listed("Page", _plain(parts)))
        rest = [*parts[:heading], *parts[heading + 2 :]]
        return text_scene([], [*listed("Instruction", _plain([parts[heading + 1]])), *listed("Page", _plain(rest))])


_TASK = re.compile(r"Your task is to: ([^\n]+)")
_SEEN = re.compile(r"(?:On|In) the ([a-z]{1,40} [0-9]{1,4}), you see ([^\n.]{1,2000})\.")
_OPENED = re.compile(r"The ([a-z]{1,40} [0-9]{1,4}) is (open|closed)\.(?: In it, you see ([^\n.]{1,2000})\.)?")
_CLOSED = re.compile(r"You close the ([a-z]{1,40} [0-9]{1,4})\.")
_TAKEN = re.compile(r"You pick up the ([a-z]{1,40} [0-9]{1,4}) from")
_PUT = re.compile(r"You (?:put|move) the ([a-z]{1,40} [0-9]{1,4}) (?:in/on|in|on|to)")


class _ALFWorldReader:
    """Keeps the task, the place that was seen last, and what is carried."""

    def __init__(self) -> None:
        self._task = ""
        self._place: list[tuple[str, list[Entry]]] = []
        self._carried: dict[str, None] = {}

    def read(self, action: str, text: str) -> Scene | None:
        """As `TextReader.read`."""
        begins = not self._task
        if begins:
            task = _TASK.search(text)
            if task is None:
                return None
            self._task = task[1]
        else:
            self._learn(text)
        lists = [*listed("Task", [(self._task, "")]), *self._place]
        lists += listed("Inventory", _plain(self._carried), "nothing")
        return text_scene([] if begins else lines(text), lists)

    def _learn(self, answer: str) -> None:
        if opened := _OPENED.search(answer):
            things = _things(opened[3]) if opened[3] else [(opened[2], "")]
            self._place = listed(opened[1], things, "nothing")
        elif seen := _SEEN.search(answer):
            self._place = listed(seen[1], _things(seen[2]), "nothing")
        elif closed := _CLOSED.search(answer):
            self._place = listed(closed[1], [("closed", "")])
        if taken := _TAKEN.search(answer):
            self._carried[taken[1]] = None
        if put := _PUT.search(answer):
            self._carried.pop(put[1], None)


def _things(text: str) -> list[Entry]:
    names = (re.sub(r"^an? ", "", name) for name in re.split(r", and |, | and ", text))
    return _plain(name for name in names if name != "nothing")


def _plain(names: Iterable[str]) -> list[Entry]:
    return [(name, "") for name in names if name]


READERS: dict[str, type[Any]] = {
    "alfworld": _ALFWorldReader,
    "searchqa": _SearchQAReader,
    "webarena": _WebArenaReader,
    "webshop": _WebShopReader,
}
