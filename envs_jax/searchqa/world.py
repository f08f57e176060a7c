"""Invented worlds: people, towns and companies with consistent facts, and a passage about each, from a seed.

A world is a few arrays that are made in the compiled program, so each episode can have another one. A passage has the
number of its entity. People come first, half of all, then towns and companies.

Shapes: `N` entities, `W` words of a passage in the index, `M` pieces of a passage.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int32, Key, UInt32

from envs_jax.retrieval.words import character_terms, word_hashes, words_of
from envs_jax.searchqa import text
from envs_jax.searchqa.text import COMPANY, FIRST, PERSON, SECOND, TOWN, YEAR

FEWEST, MOST = 24, 8192
"""Entities of a world; names of two syllables in each of two words, or of three in one, are too few for more."""

MISSING = 0.25
"""Share of the entities that do not have an optional link."""

NAME = 5
"""Most pieces of a name: four syllables and a space."""

_WORLD = 0x5EA2C4
_SYLLABLE_BITS = 4
_PARTS = max(map(len, text.SENTENCES))


@struct.dataclass
class World:
    """The facts of a world and the index of its passages."""

    names: Int32[Array, "N 4"]
    """Syllables; -1 for none. A person has two words of two syllables, others have one word."""
    year: Int32[Array, " N"]
    links: Int32[Array, "N 2"]
    """Fields FIRST and SECOND: a person's birthplace and company, a town's mayor, a company's town and founder; -1 for
    none."""
    words: UInt32[Array, "N W 2"]
    """Hashes of the words of each passage and of its title, which is the name, in any order; 0 for none."""


@functools.cache
def kinds(entities: int) -> np.ndarray:
    """The kind of each entity, i32[N]."""
    people, towns = entities // 2, entities // 4
    return np.repeat([PERSON, TOWN, COMPANY], [people, towns, entities - people - towns]).astype(np.int32)


def make_world(seed: UInt32[Array, ""], entities: int) -> World:
    """The world of a seed; pure, can be compiled and vmapped. Facts are drawn per world, so none can be learned.

    Names are unique, and so is every value of a field. A company is founded 20 to 49 years after the birth of its
    founder, towns are older than people.
    """
    kind = kinds(entities)
    people, towns, companies = (int(np.sum(kind == which)) for which in (PERSON, TOWN, COMPANY))
    keys = jax.random.split(jax.random.fold_in(jax.random.key(_WORLD), seed), 11)
    pairs = _distinct(keys[0], people, 4 * _SYLLABLE_BITS)
    triples = _distinct(keys[1], towns + companies, 3 * _SYLLABLE_BITS)
    names = jnp.concatenate([_syllables(pairs, 4), _syllables(triples, 3)])

    first_town, first_company = people, people + towns
    mayor = _optional(keys[2], towns, 0, people)
    employer = _optional(keys[3], people, first_company, companies)
    founder = _optional(keys[4], companies, 0, people)
    birthplace = jax.random.randint(keys[5], (people,), first_town, first_town + towns)
    seat = jax.random.randint(keys[6], (companies,), first_town, first_town + towns)
    born = jax.random.randint(keys[7], (people,), 1700, 1900)
    after = jax.random.randint(keys[8], (companies,), 20, 50)
    free = jax.random.randint(keys[9], (companies,), 1750, 1950)
    founded = jnp.where(founder < 0, free, born[founder] + after)
    year = jnp.concatenate([born, jax.random.randint(keys[10], (towns,), 1000, 1700), founded])
    none = jnp.full(towns, -1, jnp.int32)
    links = jnp.stack([jnp.concatenate([birthplace, mayor, seat]), jnp.concatenate([employer, none, founder])], axis=1)
    return World(names=names, year=year, links=links, words=_index(kind, names, year, links))


def content_hash(world: World) -> UInt32[Array, "2"]:
    """A hash of the facts, equal for equal worlds only."""
    values = jnp.concatenate([world.names.ravel(), world.year, world.links.ravel()]).astype(jnp.uint32)
    place = jnp.arange(values.size, dtype=jnp.uint32) * 2 + 1
    halves = []
    for factor in (0x9E3779B1, 0x85EBCA77):
        mixed = (values ^ (place * jnp.uint32(factor))) * jnp.uint32(0xC2B2AE3D)
        mixed = (mixed ^ (mixed >> 15)) * (place | 1)
        halves.append(jnp.sum(mixed ^ (mixed >> 13), dtype=jnp.uint32))
    return jnp.stack(halves)


def field(world: World, entity: Int32[Array, ""], which: Int32[Array, ""]) -> Int32[Array, ""]:
    """A field of an entity: a year, or the number of another entity; -1 if it has none."""
    return jnp.where(which == YEAR, world.year[entity], world.links[entity, jnp.maximum(which - 1, 0)])


def name_pieces(world: World, entity: Int32[Array, ""]) -> Int32[Array, "{NAME}"]:
    """The pieces of a name; all -1 for the entity -1."""
    first, second, third, fourth = world.names[jnp.maximum(entity, 0)]
    space = jnp.where(fourth >= 0, text.piece(" "), -1)
    row = jnp.stack([first, second, space, third, fourth])
    return jnp.where(entity >= 0, row, -1).astype(jnp.int32)


def value_pieces(world: World, which: Int32[Array, ""], value: Int32[Array, ""]) -> Int32[Array, "{NAME}"]:
    """The pieces of a field's value: a year, or the name of an entity."""
    digits = value // jnp.array([1000, 100, 10, 1]) % 10 + text.DIGIT
    return jnp.where(which == YEAR, jnp.pad(digits, (0, 1), constant_values=-1), name_pieces(world, value))


def passage(world: World, entity: Int32[Array, ""]) -> Int32[Array, " M"]:
    """The pieces of the passage about an entity, from its name to the end of the line."""
    kind = jnp.asarray(kinds(world.year.shape[0]))[entity]
    parts = [name_pieces(world, entity)]
    for part in range(_PARTS):
        shown = [sentence[part] if part < len(sentence) else ("", YEAR) for sentence in text.SENTENCES]
        phrase = jnp.array([text.piece(before) for before, _ in shown])[kind]
        which = jnp.array([chosen for _, chosen in shown])[kind]
        value = field(world, entity, which)
        row = jnp.concatenate([phrase[None], value_pieces(world, which, value)])
        parts.append(jnp.where((phrase >= 0) & (value >= 0), row, -1))
    return jnp.concatenate([*parts, jnp.array([text.piece(text.LINE)])]).astype(jnp.int32)


def _distinct(key: Key[Array, ""], count: int, bits: int) -> Int32[Array, " count"]:
    """Different numbers below 2**bits: a random bijection of them, of 0, 1, ..."""
    mask = jnp.uint32(2**bits - 1)
    numbers = jnp.arange(count, dtype=jnp.uint32)
    for factor, offset in jax.random.bits(key, (4, 2)):
        numbers = (numbers * (factor | 1) + offset) & mask
        numbers ^= numbers >> (bits // 2)
    return numbers.astype(jnp.int32)


def _syllables(codes: Int32[Array, " n"], number: int) -> Int32[Array, "n 4"]:
    shifts = _SYLLABLE_BITS * jnp.arange(number)
    digits = (codes[:, None] >> shifts) & (2**_SYLLABLE_BITS - 1)
    return jnp.pad(digits, ((0, 0), (0, 4 - number)), constant_values=-1)


def _optional(key: Key[Array, ""], count: int, first: int, targets: int) -> Int32[Array, " count"]:
    """Links to any of `targets` entities from `first` on, of which a fixed share is missing."""
    order, drawn = jax.random.split(key)
    missing = jax.random.permutation(order, count) < int(np.ceil(count * MISSING))
    return jnp.where(missing, -1, jax.random.randint(drawn, (count,), first, first + targets))


def _index(
    kind: Int32[np.ndarray, " N"], names: Int32[Array, "N 4"], year: Int32[Array, " N"], links: Int32[Array, "N 2"]
) -> UInt32[Array, "N W 2"]:
    of_names = _name_hashes(names)
    fields = {YEAR: year, FIRST: links[:, 0], SECOND: links[:, 1]}
    digits = year[:, None] // np.array([1000, 100, 10, 1]) % 10
    columns = [
        of_names,
        of_names,
        jnp.sum(jnp.asarray(_DIGITS)[np.arange(4), digits], axis=1, dtype=jnp.uint32)[:, None],
    ]
    for which in (FIRST, SECOND):
        linked = fields[which][:, None, None]
        columns.append(jnp.where(linked >= 0, of_names[linked[:, 0, 0]], jnp.uint32(0)))
    for part, hashes in enumerate(_PHRASES):
        shown = [sentence[part][1] if part < len(sentence) else YEAR for sentence in text.SENTENCES]
        value = jnp.stack([fields[which] for which in shown])[kind, np.arange(len(kind))]
        columns.append(jnp.where(value[:, None, None] >= 0, jnp.asarray(hashes)[kind], jnp.uint32(0)))
    return jnp.concatenate(columns, axis=1)


def _name_hashes(names: Int32[Array, "N 4"]) -> UInt32[Array, "N 2 2"]:
    """The hashes of the one or two words of each name; 0 for none."""
    table = jnp.asarray(_SYLLABLES)
    has_two: Bool[Array, "N 1"] = names[:, 3:] >= 0
    first, second, third, fourth = (table[:, names[:, part]] for part in range(4))
    pair = first[0] + second[1]
    last = jnp.where(has_two, third[0] + fourth[1], jnp.uint32(0))
    return jnp.stack([jnp.where(has_two, pair, pair + third[2]), last], axis=1)


def _terms(texts: Sequence[str], begin: int) -> UInt32[np.ndarray, "texts 2"]:
    """What the hash of a word gets from each text, from the place `begin` on: hashes are sums over characters."""
    characters = np.array([list(map(ord, each)) for each in texts], np.uint32)
    places = np.arange(begin, begin + characters.shape[1], dtype=np.uint32)
    return np.stack([np.sum(term, axis=1, dtype=np.uint32) for term in character_terms(characters, places)], axis=1)


def _phrases() -> list[UInt32[np.ndarray, "3 words 2"]]:
    """By part of a sentence and kind, the hashes of the words before the value; 0 for none."""
    found = []
    for part in range(_PARTS):
        words = [words_of(sentence[part][0]) if part < len(sentence) else [] for sentence in text.SENTENCES]
        hashes = np.zeros((len(words), max(map(len, words)), 2), np.uint32)
        for row, each in zip(hashes, words):
            if each:
                row[: len(each)] = word_hashes(each)
        found.append(hashes)
    return found


_SYLLABLES = np.stack([_terms(text.SYLLABLES, text.SYLLABLE_BYTES * place) for place in range(3)])
_DIGITS = np.stack([_terms("0123456789", place) for place in range(4)])
_PHRASES = _phrases()
