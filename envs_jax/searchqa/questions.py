"""Questions about a world whose answer is unique by construction, with the passages that prove it.

Shapes: `N` entities, `P` pairs of relations, `G` bytes of an answer.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32, Key, UInt8

from envs_jax.searchqa import text
from envs_jax.searchqa.text import OPTIONAL, RELATIONS, TARGETS, YEAR
from envs_jax.searchqa.world import NAME, World, field, kinds, name_pieces, value_pieces

ONE_HOP, TWO_HOP, COMPARISON, UNANSWERABLE = range(4)
"""Forms: a fact of an entity; of an entity that is described by another one; which of two is older; a fact that no
passage has, asked in the words of the first form."""

SHARES = (0.35, 0.35, 0.15, 0.15)
"""Of the forms, by default."""

ANSWER_BYTES = 12
"""G."""

_KIND = np.array([relation[0] for relation in RELATIONS])
_FIELD = np.array([relation[1] for relation in RELATIONS])
_BEFORE, _AFTER, _DESCRIBED = np.array([[text.piece(a), text.piece(b), text.piece(c)] for _, _, a, b, c in RELATIONS]).T
_IS_OPTIONAL = np.array([relation[:2] in OPTIONAL for relation in RELATIONS])
PAIRS = np.array(
    [
        (via, asked)
        for via, (kind, which, *_) in enumerate(RELATIONS)
        for asked, (subject, *_) in enumerate(RELATIONS)
        if TARGETS.get((kind, which)) == subject
    ]
)
"""The pairs of relations of two hops: how the second entity is described by the first, and what is asked of it."""


@struct.dataclass
class Question:
    """A question of one of the forms, with its right answer."""

    form: Int32[Array, ""]
    relation: Int32[Array, ""]
    """What is asked, a row of `RELATIONS`; meaningless in a comparison."""
    via: Int32[Array, ""]
    """Row of `RELATIONS` by which the subject describes the entity that is asked about; -1 if it is the subject."""
    subject: Int32[Array, ""]
    """The entity that the question names."""
    other: Int32[Array, ""]
    """The second one of a comparison; else -1."""
    gold: UInt8[Array, " G"]
    """The right answer in the normal form of `exact_match`, padded with 0."""
    gold_length: Int32[Array, ""]
    gold_passage: Int32[Array, ""]
    """The passage that says the answer; -1 if none does."""
    evidence: Int32[Array, "2"]
    """The passages that are needed to know the answer; -1 for none. That an answer is unknown follows from the passage
    of the subject, which lacks it."""


def ask(key: Key[Array, ""], world: World, shares: Float32[Array, "4"]) -> Question:
    """Draws a question: its form by these shares, and evenly among the relations and then the subjects that it allows.

    The subject and the answer of two hops differ, and so do the years of a comparison.
    """
    form_key, *keys = jax.random.split(key, 9)
    form = jax.random.choice(form_key, len(SHARES), p=shares).astype(jnp.int32)
    kind = jnp.asarray(kinds(world.year.shape[0]))
    of_kind = kind == jnp.asarray(_KIND)[:, None]
    value = jnp.stack([_all(world, which) for which in _FIELD.tolist()])
    known = of_kind & (value >= 0)
    second = jnp.where(known, value, 0)[PAIRS[:, 0]]
    answers = jnp.take_along_axis(value[PAIRS[:, 1]], second, axis=1)
    is_entity = jnp.asarray(_FIELD != YEAR)[PAIRS[:, 1], None]
    two_hops = known[PAIRS[:, 0]] & (answers >= 0) & ~(is_entity & (answers == jnp.arange(len(kind))))
    missing = of_kind & ~known & jnp.asarray(_IS_OPTIONAL)[:, None]
    year = world.year
    has_other = (kind[:, None] == kind) & (year[:, None] != year)

    one, one_subject = _draw(keys[0], keys[1], known)
    pair, two_subject = _draw(keys[2], keys[3], two_hops)
    lacking, missing_subject = _draw(keys[4], keys[5], missing)
    first = _choose(keys[6], jnp.any(has_other, axis=1))
    other = _choose(keys[7], has_other[first])

    relation = jnp.stack([one, jnp.asarray(PAIRS)[pair, 1], 0, lacking])[form]
    via = jnp.where(form == TWO_HOP, jnp.asarray(PAIRS)[pair, 0], -1)
    subject = jnp.stack([one_subject, two_subject, first, missing_subject])[form]
    other = jnp.where(form == COMPARISON, other, -1)
    middle = jnp.where(form == TWO_HOP, second[pair, subject], -1)
    about = jnp.where(form == TWO_HOP, middle, subject)
    older = jnp.where(year[subject] < year[jnp.maximum(other, 0)], subject, other)
    which = jnp.where(form == COMPARISON, 1, jnp.asarray(_FIELD)[relation])
    answer = jnp.where(form == COMPARISON, older, value[relation, about])
    gold, length = text.spell(value_pieces(world, which, answer), ANSWER_BYTES)
    unknown = np.zeros(ANSWER_BYTES, np.uint8)
    unknown[: len(text.UNKNOWN)] = list(text.UNKNOWN.encode())
    is_unknown = form == UNANSWERABLE
    return Question(
        form=form,
        relation=relation.astype(jnp.int32),
        via=via.astype(jnp.int32),
        subject=subject,
        other=other,
        gold=jnp.where(is_unknown, unknown, gold),
        gold_length=jnp.where(is_unknown, len(text.UNKNOWN), length).astype(jnp.int32),
        gold_passage=jnp.where(is_unknown, -1, jnp.where(form == COMPARISON, older, about)).astype(jnp.int32),
        evidence=jnp.stack([subject, jnp.where(form == COMPARISON, other, middle)]).astype(jnp.int32),
    )


def question_pieces(world: World, question: Question) -> Int32[Array, " pieces"]:
    """The pieces of a question. It does not read the answer, nor the passages that prove it."""
    compares, relation = question.form == COMPARISON, question.relation
    described = jnp.where(question.via >= 0, jnp.asarray(_DESCRIBED)[question.via], -1)
    before = jnp.where(compares, text.piece(text.OLDER), jnp.asarray(_BEFORE)[relation])
    after = jnp.where(compares, text.piece(text.ASKED), jnp.asarray(_AFTER)[relation])
    either = jnp.where(compares, text.piece(text.OR), -1)
    named = name_pieces(world, question.subject), name_pieces(world, question.other)
    row = [before[None], described[None], named[0], either[None], named[1], after[None]]
    return jnp.concatenate(row).astype(jnp.int32)


QUESTION = 2 * NAME + 4
"""Pieces of a question."""


def _all(world: World, which: int) -> Int32[Array, " N"]:
    return jax.vmap(lambda entity: field(world, entity, jnp.int32(which)))(jnp.arange(world.year.shape[0]))


def _draw(row_key: Key[Array, ""], key: Key[Array, ""], allowed: Bool[Array, "R N"]) -> tuple[jax.Array, jax.Array]:
    """A row that allows something, and one of the columns that it allows."""
    row = _choose(row_key, jnp.any(allowed, axis=1))
    return row, _choose(key, allowed[row])


def _choose(key: Key[Array, ""], allowed: Bool[Array, " n"]) -> Int32[Array, ""]:
    return jnp.argmax(jnp.where(allowed, jax.random.uniform(key, allowed.shape), -1.0)).astype(jnp.int32)
