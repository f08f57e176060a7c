"""Compiles a response format to a deterministic automaton over bytes, and then over tokens. Runs on the host.

A response is `prelude answer`. The prelude ends before the first byte of the answer: with a think block it is the first
`</think>`, spaces, `<answer>` after the first `<think>`; without one, the first `<answer>`. Since the gaps match
anything, taking the first of each equals a non-greedy regular expression. The answer is split into items byte by byte.
Bytes that may begin a separator or the closing tag are kept in `pending` until this is decided, so they never become
part of an item.

The action that an item names is a sum of numbers along its bytes, so that names with a common ending share states: with
`go to red ball 1` and `go to blue key 2`, the color, the kind and the number each add their share of the action's id.
"""

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from jaxtyping import Int

SPACE = b" \t\n\r\v\f"
CLOSING = b"</answer>"

NO_ITEM, UNKNOWN, FIRST_ACTION = 0, 1, 2
"""Item that a byte completes: none, one that names no action, or `FIRST_ACTION + action id`."""


@dataclasses.dataclass(frozen=True)
class ByteMachine:
    """A deterministic automaton over bytes; `closed` absorbs.

    `item` is what a byte completes; the id of a known action is this item's, less `FIRST_ACTION`, plus all that was
    `added` since the last item.
    """

    next_state: Int[np.ndarray, "Q 256"]
    item: Int[np.ndarray, "Q 256"]
    added: Int[np.ndarray, "Q 256"]
    start: int
    closed: int


@dataclasses.dataclass(frozen=True)
class Element:
    """One element of the prelude: a byte of `allowed`, or any number of them if `repeats`."""

    allowed: frozenset[int]
    repeats: bool = False


Prelude = tuple[Element, ...]


@dataclasses.dataclass(frozen=True)
class _Answer:
    """State inside the answer."""

    item: int | None
    """What may follow in the item, a number of `_Names`; None if no action can match."""
    pending: bytes = b""
    """Bytes that begin a separator or the closing tag."""


_CLOSED = "closed"
_BLOCK = 2048
"""Tokens that are composed at a time; limits the memory."""


def build(*, actions: tuple[bytes, ...], think: bool, forced: bool, separator: bytes) -> ByteMachine:
    """Builds the automaton of a response format; arguments as in `ResponseGrammar`, in bytes."""
    opened = () if forced and not think else prelude(b"<answer>", think=think, forced=forced)
    format_ = _Format(actions, separator, opened)
    first = format_.enter_prelude({0}) if format_.prelude else format_.answer
    return explore(first, _CLOSED, format_.move, format_.relevant_bytes())


Move = Callable[[Hashable, int], tuple[Hashable, int, int]]
"""The state after a byte, the item that it completes, and what it adds to the id of the next one."""


def explore(first: Hashable, closed: Hashable, move: Move, relevant: frozenset[int]) -> ByteMachine:
    """Numbers the states that are reached from the first one; all bytes that are not `relevant` have one effect."""
    state_ids: dict[Hashable, int] = {first: 0}
    states: list[Hashable] = [first]
    rows = []
    for state in states:  # grows
        other_byte = move(state, 0xFF)  # 0xFF is in no UTF-8 text, so in no format
        moves = [move(state, byte) if byte in relevant else other_byte for byte in range(256)]
        for after, _, _ in moves:
            if after not in state_ids:
                state_ids[after] = len(states)
                states.append(after)
        rows.append([(state_ids[after], item, added) for after, item, added in moves])
    next_state, item, added = np.ascontiguousarray(np.array(rows, np.int32).transpose(2, 0, 1))
    return ByteMachine(next_state, item, added, 0, state_ids[closed])


def prelude(opening: bytes, *, think: bool, forced: bool) -> Prelude:
    """What comes before a block, up to the last byte of its opening tag; with `forced` it starts in the thought."""
    anything, space = Element(frozenset(range(256)), True), Element(frozenset(SPACE), True)

    def literal(text: bytes) -> Prelude:
        return tuple(Element(frozenset([byte])) for byte in text)

    opened = () if forced and think else (anything, *literal(b"<think>" if think else opening))
    return (*opened, anything, *literal(b"</think>"), space, *literal(opening)) if think else opened


def enter(elements: Prelude, reached: set[int]) -> frozenset[int] | None:
    """The state for a set of elements, plus those reached by skipping elements with `repeats`; None at the end."""
    found = set()
    for k in sorted(reached):
        while k < len(elements) and elements[k].repeats:
            found.add(k)
            k += 1
        found.add(k)
    if len(elements) in found:
        return None
    # A gap that matches anything stays reachable, so elements before the last one cannot change the result.
    gaps = (k for k in found if elements[k].repeats and len(elements[k].allowed) == 256)
    last_gap = max(gaps, default=0)
    return frozenset(k for k in found if k >= last_gap)


def follow(elements: Prelude, state: frozenset[int], byte: int) -> frozenset[int] | None:
    """The state after one more byte of a prelude; None where it ends."""
    matching = (k for k in state if byte in elements[k].allowed)
    return enter(elements, {k if elements[k].repeats else k + 1 for k in matching})


class _Names:
    """The names of the actions as a graph. Nodes that may be followed by the same text are one.

    A node is the number of an entry of `moves`, `ids` and `complete`. The id of a name is the sum of the shares along
    its bytes, plus the `ids` entry of its last node.
    """

    def __init__(self, actions: tuple[bytes, ...]):
        self.names = {name.lower(): i for i, name in enumerate(actions)}
        self.moves: list[dict[int, tuple[int, int]]] = []
        """By node and byte: the next node, and the share of the id that the byte decides."""
        self.ids: list[int | None] = []
        """By node: what is left of the id if the item ends here; None if it then is no name."""
        self._nodes: dict[Hashable, int] = {}
        self.complete = self._node({}, 0)
        """The node after a name that can only be followed by spaces."""
        endings: dict[bytes, set[int]] = {}
        for name in self.names:
            for k in range(len(name)):
                endings.setdefault(name[:k], set()).add(name[k])
        self.start = self._add(b"", endings)[0]

    def _add(self, prefix: bytes, endings: dict[bytes, set[int]]) -> tuple[int, int]:
        """Returns the node of a prefix, and the lowest id of a name with it."""
        own = self.names.get(prefix.rstrip(SPACE))
        after = {byte: self._add(prefix + bytes([byte]), endings) for byte in sorted(endings.get(prefix, ()))}
        lowest = min([low for _, low in after.values()] + ([] if own is None else [own]), default=0)
        moves = {byte: (node, low - lowest) for byte, (node, low) in after.items()}
        return self._node(moves, None if own is None else own - lowest), lowest

    def _node(self, moves: dict[int, tuple[int, int]], own: int | None) -> int:
        key = (tuple(moves.items()), own)
        if key not in self._nodes:
            self._nodes[key] = len(self.moves)
            self.moves.append(moves)
            self.ids.append(own)
        return self._nodes[key]


@dataclasses.dataclass(frozen=True)
class _Format:
    actions: tuple[bytes, ...]
    separator: bytes
    prelude: Prelude

    @functools.cached_property
    def names(self) -> _Names:
        return _Names(self.actions)

    @property
    def answer(self) -> _Answer:
        """State at the start of an item."""
        return _Answer(self.names.start)

    def relevant_bytes(self) -> frozenset[int]:
        """Returns the bytes that the format mentions; all other bytes have the same effect."""
        literals = {byte for element in self.prelude if not element.repeats for byte in element.allowed}
        names = self.names.names
        text = b"".join([*names, *(name.upper() for name in names), CLOSING, self.separator, SPACE])
        return frozenset(literals | set(text))

    def move(self, state: Hashable, byte: int) -> tuple[Hashable, int, int]:
        """Returns the state after `byte`, the item that it completes, and what it adds to the id of the next one."""
        if isinstance(state, frozenset):  # in the prelude: its elements that may come next
            return follow(self.prelude, state, byte) or self.answer, NO_ITEM, 0
        if isinstance(state, _Answer):
            return self._move_in_answer(state, byte)
        return state, NO_ITEM, 0

    def enter_prelude(self, reached: set[int]) -> Hashable:
        """See `enter`; the answer begins where the prelude ends."""
        return enter(self.prelude, reached) or self.answer

    def _move_in_answer(self, state: _Answer, byte: int) -> tuple[Hashable, int, int]:
        item, pending, added = state.item, state.pending + bytes([byte]), 0
        while not (CLOSING.startswith(pending) or self.separator.startswith(pending)):
            item, share = self._extend_item(item, pending[0])
            added, pending = added + share, pending[1:]
        if pending == CLOSING:
            return _CLOSED, self._finish_item(item, added), 0
        if pending == self.separator:
            return self.answer, self._finish_item(item, added), 0
        if pending and item is not None and pending[0] not in self.names.moves[item] and item != self.names.start:
            # Whether or not the item ends here, it cannot become longer.
            own = self.names.ids[item]
            item, added = (None, 0) if own is None else (self.names.complete, added + own)
        return _Answer(item, pending), NO_ITEM, added

    def _extend_item(self, item: int | None, byte: int) -> tuple[int | None, int]:
        """Returns the node after one more byte, and its share of the id."""
        if item is None:
            return None, 0
        after = self.names.moves[item].get(bytes([byte]).lower()[0])
        if after is not None:
            return after
        own = self.names.ids[item]
        if byte in SPACE and item == self.names.start:
            return item, 0
        if byte in SPACE and own is not None:
            return self.names.complete, own
        return None, 0

    def _finish_item(self, item: int | None, added: int) -> int:
        if item == self.names.start:
            return NO_ITEM
        own = None if item is None else self.names.ids[item]
        return UNKNOWN if own is None else FIRST_ACTION + added + own


def compose(
    machine: ByteMachine, token_bytes: Sequence[bytes | None]
) -> tuple[
    Int[np.ndarray, " V"],
    Int[np.ndarray, "Q C"],
    Int[np.ndarray, "Q C"],
    Int[np.ndarray, "Q C"],
    Int[np.ndarray, "F E"],
]:
    """Composes the automaton over the bytes of every token; None or no bytes for a token that changes nothing.

    Tokens with the same effect in every state share a class, which keeps the tables small for large vocabularies.

    Returns `token_class`, `next_state`, `run`, `added` and `runs`: row `run[q, c]` of `runs` lists the items that a
    token of class `c` completes from state `q`, padded with `NO_ITEM`; `added[q, c]` is what it adds after the last of
    them. Class 0 changes nothing.
    """
    states = machine.next_state.shape[0]
    next_flat, item_flat, added_flat = (x.ravel() for x in (machine.next_state, machine.item, machine.added))
    runs: dict[tuple[int, ...], int] = {(): 0}
    identity = np.stack([np.arange(states, dtype=np.int32), *np.zeros((2, states), np.int32)])
    classes = {identity.tobytes(): 0}
    token_class = np.zeros(len(token_bytes), np.int32)
    encoded = [data or b"" for data in token_bytes]
    ids = sorted((i for i, data in enumerate(encoded) if data), key=lambda i: len(encoded[i]))
    for begin in range(0, len(ids), _BLOCK):
        chunk = ids[begin : begin + _BLOCK]
        state = np.tile(np.arange(states, dtype=np.int32), (len(chunk), 1))
        run, added = np.zeros_like(state), np.zeros_like(state)
        lengths = np.array([len(encoded[i]) for i in chunk])
        padded = b"".join(encoded[i].ljust(lengths[-1], b"\0") for i in chunk)
        data = np.frombuffer(padded, np.uint8).reshape(len(chunk), -1)
        for position in range(lengths[-1]):
            first = int(np.searchsorted(lengths, position, side="right"))  # lengths are sorted: rows with more bytes
            index = state[first:] * 256 + data[first:, position, None]
            state[first:] = next_flat[index]
            item = item_flat[index]
            where = np.nonzero(item)
            if where[0].size:
                # The first item of a token also takes what this token has added; the table's register has the rest.
                known = np.where(item[where] >= FIRST_ACTION, item[where] + added[first:][where], item[where])
                run[first:][where] = _append(runs, run[first:][where], known)
            added[first:] = np.where(item != NO_ITEM, 0, added[first:] + added_flat[index])
        for row, i in enumerate(chunk):
            token_class[i] = classes.setdefault(np.stack([state[row], run[row], added[row]]).tobytes(), len(classes))
    columns = np.frombuffer(b"".join(classes), np.int32).reshape(len(classes), 3, states)
    next_state, run_ids, added_ids = np.ascontiguousarray(columns.transpose(1, 2, 0))
    width = max(1, *map(len, runs))
    padded_runs = np.array([[*run, *[NO_ITEM] * (width - len(run))] for run in runs], np.int32)
    return token_class, next_state, run_ids, added_ids, padded_runs


def _append(runs: dict[tuple[int, ...], int], run: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Appends an item to each run and returns the ids of the results; new runs are added to `runs`."""
    pairs, inverse = np.unique(run.astype(np.int64) << 32 | item, return_inverse=True)
    known = list(runs)
    longer = [runs.setdefault((*known[pair >> 32], pair & 0xFFFFFFFF), len(runs)) for pair in pairs.tolist()]
    return np.array(longer, np.int32)[inverse.ravel()]
