"""Whether an answer is right, by three rules over texts in normal form (`exact_match.normalized`).

Shapes: `L` characters of an answer, `A` right answers of `G` characters at most, `T` words of an answer at most.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from envs_jax.retrieval.words import character_terms
from envs_jax.searchqa.exact_match import equals

EXACT, CONTAINED, F1 = RULES = ("em", "sub_em", "f1")
"""Equal to a right answer; a right answer is a part of it, character by character; enough words in common with one."""


def is_right(
    rule: str,
    threshold: float,
    answer: UInt32[Array, " L"],
    size: Int32[Array, ""],
    golds: Int32[Array, "A G"],
    sizes: Int32[Array, " A"],
) -> Bool[Array, ""]:
    """Whether an answer of `size` characters is right by a rule; no right answer has the size 0.

    `threshold` is read by `F1` alone: the least F1 of words, as SQuAD's evaluation has it.
    """
    if rule == EXACT:
        right = jax.vmap(lambda gold, length: equals(answer, size, gold, length))(golds, sizes)
    elif rule == CONTAINED:
        right = jax.vmap(lambda gold, length: _contains(answer, size, gold, length))(golds, sizes)
    else:
        right = jax.vmap(lambda gold, length: f1(answer, size, gold, length))(golds, sizes) >= threshold
    return jnp.any(right & (sizes > 0)) & (size > 0)


def f1(
    answer: UInt32[Array, " L"], size: Int32[Array, ""], gold: Int32[Array, " G"], gold_size: Int32[Array, ""]
) -> Float32[Array, ""]:
    """The harmonic mean of precision and recall of the words of an answer, repeated words counted as often."""
    ours, number = _words(answer, size)
    theirs, wanted = _words(gold.astype(jnp.uint32), gold_size)
    place = jnp.arange(ours.shape[0])
    exists = place < number
    equal = jnp.all(ours[:, None] == theirs, axis=2) & (jnp.arange(theirs.shape[0]) < wanted)
    before = jnp.all(ours[:, None] == ours, axis=2) & (place[None] < place[:, None])
    common = jnp.sum(exists & (jnp.sum(before, axis=1) < jnp.sum(equal, axis=1)))
    return (2 * common / jnp.maximum(number + wanted, 1)).astype(jnp.float32)


def _words(text: UInt32[Array, " L"], size: Int32[Array, ""]) -> tuple[UInt32[Array, "T 2"], Int32[Array, ""]]:
    """The 64-bit hashes of the words between single spaces, and their number."""
    place = jnp.arange(text.shape[0])
    inside = (place < size) & (text != ord(" "))
    begins = inside & ~jnp.pad(inside, (1, 0))[:-1]
    first = jax.lax.cummax(jnp.where(begins, place, 0))
    terms = jnp.stack(character_terms(text, (place - first).astype(jnp.uint32)), axis=1)
    number = jnp.where(inside, jnp.cumsum(begins) - 1, text.shape[0])
    most = (text.shape[0] + 1) // 2
    return jnp.zeros((most, 2), jnp.uint32).at[number].add(terms, mode="drop"), jnp.sum(begins, dtype=jnp.int32)


def _contains(
    text: UInt32[Array, " L"], size: Int32[Array, ""], part: Int32[Array, " G"], part_size: Int32[Array, ""]
) -> Bool[Array, ""]:
    place = jnp.arange(text.shape[0])

    def narrow(number: Array, here: Array) -> Array:
        return here & (text[jnp.minimum(place + number, text.shape[0] - 1)] == part[number])

    here = jax.lax.fori_loop(0, jnp.minimum(part_size, part.shape[0]), narrow, place + part_size <= size)
    return jnp.any(here)
