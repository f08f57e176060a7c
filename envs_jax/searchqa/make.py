"""The factory of searchqa: invented worlds, or a corpus with questions out of files."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from envs_jax.errors import BadValue
from envs_jax.searchqa.corpus_env import CorpusQA
from envs_jax.searchqa.dialects import DIALECTS, Dialect
from envs_jax.searchqa.env import SearchQA
from envs_jax.searchqa.judging import EXACT, F1, RULES
from envs_jax.searchqa.library import RETRIEVERS, make_texts, open_corpus, open_questions
from envs_jax.token_environment import TokenEnvironment

MOST = {"results": 100, "characters": 10**6, "threshold": 1}
"""Largest values of options."""


def make_searchqa(
    corpus: str = "",
    questions: str = "",
    *,
    dialect: str | None = None,
    reward: str | None = None,
    threshold: float | None = None,
    retriever: str | None = None,
    results: int | None = None,
    characters: int | None = None,
    entities: int | None = None,
    information_pieces: int | None = None,
) -> tuple[TokenEnvironment, Any]:
    """Makes the environment over the files `corpus` and `questions`, or, without them, over invented worlds.

    Args:
        corpus: file .jsonl of passages, see `retrieval.corpus.read_corpus`.
        questions: file .jsonl of questions, see `question_files.read_questions`.
        dialect: of files, a name of `DIALECTS`; None for search_r1.
        reward: of files, a name of `judging.RULES`; None for the dialect's.
        threshold: the least F1 of a right answer, with reward f1; None for the dialect's.
        retriever: of files, a name of `library.RETRIEVERS`; None for bm25.
        results: most passages of a search; None for the dialect's, and for three in invented worlds.
        characters: of files, most characters of the passages of a search, see `Dialect`; None for the dialect's.
        entities: of invented worlds, see `SearchQA`; None for 300.
        information_pieces: of invented worlds, see `SearchQA`.

    Raises:
        ValueError: an option is out of range, or is not for what is made; or a file cannot be used, see its reader.
    """
    of_files: dict[str, Any] = {"questions": questions, "dialect": dialect, "reward": reward, "threshold": threshold}
    of_files |= {"retriever": retriever, "characters": characters}
    of_worlds = {"entities": entities, "information_pieces": information_pieces}
    for name, value in of_worlds.items() if corpus else of_files.items():
        if value not in (None, ""):
            why = "which is for invented worlds; leave it out" if corpus else "but corpus is not given; give it too"
            raise BadValue(f"{name} of searchqa is {value!r}, {why}", name, value)
    if not corpus:
        worlds = SearchQA(
            300 if entities is None else entities,
            3 if results is None else results,
            information_pieces=information_pieces,
        )
        return worlds, worlds.default_params
    if not questions:
        raise BadValue("questions of searchqa is ''; expected a file .jsonl with a question a line", "questions", "")
    changes = {"reward": reward, "threshold": threshold, "results": results, "characters": characters}
    chosen = _dialect("search_r1" if dialect is None else dialect, changes)
    searcher = "bm25" if retriever is None else retriever
    _one_of("retriever", searcher, RETRIEVERS)
    passages, index = open_corpus(corpus, searcher)
    asked, golds = open_questions(questions, passages, CorpusQA.argument_bytes)
    env = CorpusQA(passages, asked, chosen)
    return env, env.params_of(index, golds, make_texts(passages, asked, CorpusQA.argument_bytes))


def _dialect(name: str, changes: Mapping[str, Any]) -> Dialect:
    """A dialect with the changes that are not None."""
    given = {option: value for option, value in changes.items() if value is not None}
    _one_of("dialect", name, DIALECTS)
    _one_of("reward", given.get("reward", EXACT), RULES)
    chosen = dataclasses.replace(DIALECTS[name], **given)
    if "threshold" in given and chosen.reward != F1:
        why = f"which reward {chosen.reward} does not read; leave it out"
        raise BadValue(f"threshold of searchqa is {given['threshold']!r}, {why}", "threshold", given["threshold"])
    for option, value in given.items():
        if option in MOST and not 0 < value <= MOST[option]:
            why = f"expected more than 0, at most {MOST[option]}"
            raise BadValue(f"{option} of searchqa is {value!r}; {why}", option, value)
    return chosen


def _one_of(option: str, value: str, known: Iterable[str]) -> None:
    if value not in (names := tuple(known)):
        raise BadValue(f"{option} of searchqa is {value!r}; expected one of {', '.join(names)}", option, value)
