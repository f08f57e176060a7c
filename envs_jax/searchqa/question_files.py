"""Questions with right answers, and the reader of their files."""

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from envs_jax.json_rows import check_text, json_rows, quoted, refuse

_READ = frozenset(("question", "golden_answers", "evidence", "data_source"))
_IGNORED = frozenset(("id", "metadata", "prompt", "ability", "reward_model", "extra_info"))


@dataclasses.dataclass(frozen=True)
class Question:
    """A question, its right answers, the ids of the passages that tell them, and the name of its data set."""

    text: str
    answers: tuple[str, ...]
    evidence: tuple[int, ...] = ()
    source: str = ""


def read_questions(
    path: str | os.PathLike[str], passages: Mapping[str, int], usable: Callable[[Sequence[str]], Sequence[bool]]
) -> list[Question]:
    """Reads a file `.jsonl` with one object a line: `question` and `golden_answers`, one text or several.

    Optional are `evidence`, names of passages, whose numbers `passages` has, and `data_source`. Other keys of files of
    FlashRAG and Search-R1 are ignored. `usable` says of all answers of the file which can be right, for instance
    because exact match leaves something of them; the others are left out.

    Raises:
        BadValue: the file is missing or empty; or a line is no strict JSON, repeats a key, has other keys or types,
            has no answer that can be right, or names a passage that is not there. The message names file and line.
    """
    places = list[str]()

    def question(value: dict[str, Any], where: str) -> Question:
        places.append(where)
        return _question(value, where, passages)

    found = json_rows(path, question, "question")
    flags = iter(usable([answer for each in found for answer in each.answers]))
    kept = [tuple(answer for answer in each.answers if next(flags)) for each in found]
    for where, question_, answers in zip(places, found, kept):
        if not answers:
            why = "golden_answers has none that can be right: exact match leaves nothing of them, or they are too long"
            raise refuse(where, f"{why}; leave the row out", list(question_.answers))
    return [dataclasses.replace(each, answers=answers) for each, answers in zip(found, kept)]


def _question(value: dict[str, Any], where: str, passages: Mapping[str, int]) -> Question:
    for key in value:
        if key not in _READ | _IGNORED:
            raise refuse(where, f"has the key {quoted(key)}; expected {', '.join(sorted(_READ))}", key)
    given = value.get("golden_answers")
    answers = [given] if isinstance(given, str) else given
    evidence, source = value.get("evidence", []), value.get("data_source", "")
    check_text(where, "question", value.get("question"))
    check_text(where, "data_source", source)
    for key, texts in (("golden_answers", answers), ("evidence", evidence)):
        if not isinstance(texts, list):
            raise refuse(where, f"{key} is a JSON {type(texts).__name__}; expected a list of strings", texts)
        for text in texts:
            check_text(where, key, text, "a string, or a list of them")
    text = " ".join(value["question"].split())
    if not text:
        raise refuse(where, "question is empty; leave the row out", value["question"])
    for name in evidence:
        if name not in passages:
            raise refuse(where, f"evidence names {quoted(name)}, which is no passage of the corpus", name)
    assert isinstance(answers, list)
    right = tuple(dict.fromkeys(answers))
    return Question(text if text.endswith("?") else f"{text}?", right, tuple(passages[x] for x in evidence), source)
