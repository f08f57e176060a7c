"""Questions with right answers, and the reader of their files."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentrl_jax.errors import UserError, shortened, text_flaw
from agentrl_jax.json_files import JsonLines
from agentrl_jax.services.environments.searchqa.answers import normalized

_READ = frozenset(("question", "golden_answers", "evidence", "data_source"))
_IGNORED = frozenset(("id", "metadata", "prompt", "ability", "reward_model", "extra_info"))


@dataclasses.dataclass(frozen=True)
class Question:
    """A question, its right answers, the ids of the passages that tell them, and the name of its data set."""

    text: str
    answers: tuple[str, ...]
    evidence: tuple[int, ...] = ()
    source: str = ""


def read_questions(path: str | os.PathLike[str], passages: Mapping[str, int]) -> Sequence[Question]:
    """Reads a file `.jsonl` with one object a line: `question` and `golden_answers`, one text or several.

    Optional are `evidence`, names of passages, whose numbers `passages` has, and `data_source`. Other keys of files of
    FlashRAG and Search-R1 are ignored. Answers of which exact match leaves nothing are left out.

    Raises:
        UserError: the file is missing or empty; or a line is no strict JSON, repeats a key, has other keys or types,
            has no answer that can be right, or names a passage that is not there. The message names file and line.
    """
    file = Path(path)
    if not file.is_file():
        raise UserError.at(file, "no such file; give one with a question a line, as .jsonl")
    found: list[Question] = []
    JsonLines(file, lambda value, where: _question(value, where, passages), found.append)
    if not found:
        raise UserError.at(file, "has no questions; expected at least one a line")
    return found


def _question(value: Any, where: str, passages: Mapping[str, int]) -> Question:
    if not isinstance(value, dict):
        raise UserError.at(where, f"holds a JSON {type(value).__name__}; expected an object with question", value)
    for key in value:
        if key not in _READ | _IGNORED:
            raise UserError.at(where, f"has the key {shortened(repr(key))}; expected {', '.join(sorted(_READ))}", key)
    given = value.get("golden_answers")
    answers = [given] if isinstance(given, str) else given
    evidence, source = value.get("evidence", []), value.get("data_source", "")
    for key, texts in (("question", [value.get("question")]), ("golden_answers", answers), ("evidence", evidence)):
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise UserError.at(
                where, f"{key} is no text; expected a string{' or a list of them' * (key != 'question')}"
            )
        if flaw := next(filter(None, map(text_flaw, texts)), ""):
            raise UserError.at(where, f"{key} has {flaw}; write it as Unicode text", key)
    assert isinstance(answers, list)
    right = tuple(dict.fromkeys(answer for answer in answers if normalized(answer)))
    text = " ".join(value["question"].split())
    if not text or not right:
        what = "golden_answers has none of which exact match leaves anything" if text else "question is empty"
        raise UserError.at(where, f"{what}; leave the row out", given)
    for name in evidence:
        if name not in passages:
            raise UserError.at(
                where, f"evidence names {shortened(repr(name))}, which is no passage of the corpus", name
            )
    if not isinstance(source, str):
        raise UserError.at(where, f"data_source is a JSON {type(source).__name__}; expected a string", source)
    return Question(text if text.endswith("?") else f"{text}?", right, tuple(passages[x] for x in evidence), source)
