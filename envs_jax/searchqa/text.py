"""The pieces of text of the invented worlds: names of syllables, digits, and the phrases of passages and questions.

Names have few syllables, each two bytes long, and most of them one token of the package's small tokenizer.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int32, UInt8

SYLLABLES = ("de", "go", "ke", "la", "le", "lo", "ra", "re", "ro", "se", "to", "ve", "wo", "ar", "ol", "us")
SYLLABLE_BYTES = 2
UNKNOWN = "unknown"
"""The right answer to a question that the passages do not answer."""

PERSON, TOWN, COMPANY = range(3)
YEAR, FIRST, SECOND = range(3)
"""Fields of an entity: a year, and two links to others."""

RELATIONS = (
    (PERSON, FIRST, "where was ", " born?", "the birthplace of "),
    (PERSON, YEAR, "when was ", " born?", ""),
    (PERSON, SECOND, "who does ", " work for?", "the company of "),
    (TOWN, YEAR, "when was ", " founded?", ""),
    (TOWN, FIRST, "who is mayor of ", "?", "the mayor of "),
    (COMPANY, YEAR, "when was ", " founded?", ""),
    (COMPANY, FIRST, "where is ", "?", "the town of "),
    (COMPANY, SECOND, "who founded ", "?", "the founder of "),
)
"""Kind of the subject, field, question before and after the subject, and how the object is described by the subject."""

TARGETS = {(PERSON, FIRST): TOWN, (PERSON, SECOND): COMPANY, (TOWN, FIRST): PERSON, (COMPANY, FIRST): TOWN,
           (COMPANY, SECOND): PERSON}  # fmt: skip
"""Kinds that links point to."""

OPTIONAL = ((PERSON, SECOND), (TOWN, FIRST), (COMPANY, SECOND))
"""Links that some entities do not have."""

OLDER, OR, ASKED = "which is older, ", " or ", "?"
DOCUMENT, OF_RANK, LINE = "Doc ", ": ", ".\n"
SENTENCES = (
    ((" was born in ", FIRST), (" in ", YEAR), (" and works for ", SECOND)),
    ((" was founded in ", YEAR), (" and its mayor is ", FIRST)),
    ((" is in ", FIRST), (", was founded in ", YEAR), (" by ", SECOND)),
)
"""By kind, the parts of a passage after the name; one about a link that is missing is left out."""

OPENED, CLOSED = "<information>", "</information>"
REFUSED = "Write <search>words</search> or <answer>words</answer>."

_PHRASES = (
    *(text for _, _, before, after, described in RELATIONS for text in (before, after, described)),
    *(before for sentence in SENTENCES for before, _ in sentence),
    *(OLDER, OR, ASKED, DOCUMENT, OF_RANK, LINE, OPENED, CLOSED, REFUSED, " "),
)
PIECES = (*SYLLABLES, *"0123456789", *dict.fromkeys(text for text in _PHRASES if text))
_IDS = {piece: number for number, piece in enumerate(PIECES)}
DIGIT = _IDS["0"]
"""Id of the first digit."""


def piece(text: str) -> int:
    """The id of a piece; -1 for an empty text."""
    return _IDS[text] if text else -1


_BYTES = np.zeros((len(PIECES) + 1, max(map(len, PIECES))), np.uint8)
"""The bytes of each piece, padded with 0; none of the piece -1."""
for _number, _piece in enumerate(PIECES):
    _BYTES[_number, : len(_piece)] = list(_piece.encode())


def spell(pieces: Int32[Array, " n"], size: int) -> tuple[UInt8[Array, " {size}"], Int32[Array, ""]]:
    """The bytes of pieces, -1 for none, padded with 0 or cut to `size`; and their number."""
    spelled = jnp.asarray(_BYTES)[pieces].ravel()
    used = spelled > 0
    place = jnp.where(used, jnp.cumsum(used) - 1, size)
    return jnp.zeros(size, jnp.uint8).at[place].set(spelled, mode="drop"), jnp.sum(used, dtype=jnp.int32)
