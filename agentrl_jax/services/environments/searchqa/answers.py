"""Answers between tags, and whether they are right."""

import re
import string
from collections.abc import Iterable

TAGGED = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """An answer as exact match compares it: lower case, without ASCII punctuation and articles, blanks squeezed.

    The rules of SQuAD's evaluation (Rajpurkar et al. 2016), in its order.
    """
    return " ".join(_ARTICLE.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def answer_in(response: str) -> str | None:
    """What stands in the last answer tags of a response; None without any."""
    found = _ANSWER.findall(response)
    return found[-1].strip() if found else None


def is_right(answer: str, right: Iterable[str]) -> bool:
    """Whether an answer equals a right one, both normalized; a right one of which nothing is left equals none."""
    given = normalized(answer)
    return bool(given) and any(normalized(each) == given for each in right)
