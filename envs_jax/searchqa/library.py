"""A user's corpus and questions as arrays of the compiled program.

Shapes: `N` passages, `Q` questions, `A` right answers of a question and `M` of all, `C` their characters, `G` the most
characters of one, `E` passages of evidence, `L` bytes of an argument.
"""

import functools
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int32, UInt8, UInt32

from envs_jax.retrieval import compiled_bm25, compiled_static
from envs_jax.retrieval.characters import read
from envs_jax.retrieval.corpus import Corpus, read_corpus
from envs_jax.retrieval.wordllama import load_wordllama
from envs_jax.searchqa.exact_match import normalized
from envs_jax.searchqa.question_files import Question, read_questions

Index = compiled_bm25.Bm25Index | compiled_static.StaticIndex


def _static(texts: Sequence[str]) -> Index:
    return compiled_static.build_index(compiled_static.wordllama_encoder(load_wordllama()), texts)


RETRIEVERS: dict[str, Callable[[Sequence[str]], Index]] = {"bm25": compiled_bm25.build_index, "static": _static}
"""What searches, by name: makes the index of texts. `static` needs the package wordllama."""

_AT_ONCE = 256
KEPT = 4
"""Corpora whose index is kept in this process, because an environment is made more than once."""


@struct.dataclass
class Golds:
    """The right answers in normal form, and what else is known of questions. No observation reads it."""

    characters: Int32[Array, " C"]
    begins: Int32[Array, " M"]
    sizes: Int32[Array, " M"]
    first: Int32[Array, " Q"]
    """The first answer of each question."""
    number: Int32[Array, " Q"]
    """Its answers."""
    evidence: Int32[Array, "Q E"]
    """Passages; -1 for none."""
    hashes: UInt32[Array, "Q 2"]
    """Of the text of each question."""
    most: int = struct.field(pytree_node=False)
    """A."""
    longest: int = struct.field(pytree_node=False)
    """G."""

    def of(self, question: Int32[Array, ""]) -> tuple[Int32[Array, "A G"], Int32[Array, " A"]]:
        """The characters of the answers of a question, padded with others, and their sizes, 0 for none."""
        place = jnp.arange(self.most)
        answer = jnp.minimum(self.first[question] + place, len(self.begins) - 1)
        characters = self.characters[
            jnp.minimum(self.begins[answer][:, None] + jnp.arange(self.longest), len(self.characters) - 1)
        ]
        return characters, jnp.where(place < self.number[question], self.sizes[answer], 0)


@struct.dataclass
class Texts:
    """What scripted policies write, as bytes, padded with 0; no observation reads it. Texts that are longer are cut."""

    titles: UInt8[Array, "N L"]
    questions: UInt8[Array, "Q L"]
    answers: UInt8[Array, "Q L"]
    """The first right answer of each question."""


@jax.jit
def _normalized(data: Any, totals: Any) -> Any:
    return jax.vmap(lambda row, total: normalized(read(row, total)))(data, totals)


def normal_forms(answers: Sequence[str], size: int) -> list[list[int]]:
    """The characters of answers in normal form; none of an answer with more than `size` bytes.

    It is the program that judges answers which makes them, so that both are of one version of Unicode and one rule.
    """
    rows = [answer.encode() for answer in answers]
    found = list[list[int]]()
    for begin in range(0, len(rows), _AT_ONCE):
        data, totals = np.zeros((_AT_ONCE, size), np.uint8), np.zeros(_AT_ONCE, np.int32)
        for index, row in enumerate(rows[begin : begin + _AT_ONCE]):
            data[index, : len(row)] = list(row[:size])
            totals[index] = len(row) if len(row) <= size else 0
        texts, sizes = jax.device_get(_normalized(data, totals))
        found += [text[:length].tolist() for text, length in zip(texts, sizes.tolist())]
    return found[: len(rows)]


def make_texts(corpus: Corpus, questions: Sequence[Question], size: int) -> Texts:
    """What scripts write, in arguments of `size` bytes."""
    titles = [passage.title or passage.text for passage in corpus.passages]
    lists = titles, [question.text for question in questions], [question.answers[0] for question in questions]
    return Texts(*(_bytes(texts, size) for texts in lists))


def _bytes(texts: Sequence[str], size: int) -> UInt8[Array, "rows size"]:
    rows = np.zeros((len(texts), size), np.uint8)
    for row, text in zip(rows, texts):
        data = text.encode()[:size].decode("utf-8", "ignore").encode()
        row[: len(data)] = list(data)
    return jnp.array(rows)


def make_golds(questions: Sequence[Question], size: int) -> Golds:
    """The right answers of questions, for arguments of `size` bytes."""
    forms = normal_forms([answer for question in questions for answer in question.answers], size)
    number = np.array([len(question.answers) for question in questions], np.int32)
    sizes = np.array(list(map(len, forms)), np.int32)
    evidence = np.full((len(questions), max(2, *(len(each.evidence) for each in questions))), -1, np.int32)
    for row, question in zip(evidence, questions):
        row[: len(question.evidence)] = question.evidence
    digests = b"".join(hashlib.sha256(question.text.encode()).digest()[:8] for question in questions)
    return Golds(
        characters=jnp.array([code for form in forms for code in form], jnp.int32),
        begins=jnp.array(np.cumsum(sizes) - sizes, jnp.int32),
        sizes=jnp.array(sizes),
        first=jnp.array(np.cumsum(number) - number, jnp.int32),
        number=jnp.array(number),
        evidence=jnp.array(evidence),
        hashes=jnp.array(np.frombuffer(digests, "<u4").reshape(-1, 2)),
        most=int(number.max()),
        longest=int(sizes.max()),
    )


def open_corpus(path: str, retriever: str) -> tuple[Corpus, Index]:
    """The passages of a file and their index for one of `RETRIEVERS`.

    Raises:
        BadValue: as `read_corpus`; or the retriever cannot search these passages, or its package is missing.
    """
    return _corpus(path, _stamp(path), retriever)


def open_questions(path: str, corpus: Corpus, size: int) -> tuple[list[Question], Golds]:
    """The questions of a file about a corpus, with the answers that can be given in `size` bytes; raises as
    `read_questions`."""
    numbers = {passage.name: number for number, passage in enumerate(corpus.passages)}
    questions = read_questions(path, numbers, lambda answers: list(map(bool, normal_forms(answers, size))))
    return questions, make_golds(questions, size)


@functools.lru_cache(KEPT)
def _corpus(path: str, stamp: tuple[int, ...], retriever: str) -> tuple[Corpus, Index]:
    corpus = read_corpus(path)
    return corpus, RETRIEVERS[retriever](corpus.texts)


def _stamp(path: str) -> tuple[int, ...]:
    """What changes with the content of a file."""
    try:
        stat = Path(path).stat()
    except OSError:
        return ()  # the reader says what is wrong
    return stat.st_ino, stat.st_size, stat.st_mtime_ns
