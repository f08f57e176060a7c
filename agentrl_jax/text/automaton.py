"""Compiles a response format to a deterministic automaton over bytes, and then over tokens. Runs on the host.

A response is `prelude answer`. The prelude ends before the first byte of the answer: with a think block it is the first
`</think>`, spaces, `<answer>` after the first `<think>`; without one, the first `<answer>`. Since the gaps match
anything, taking the first of each equals a non-greedy regular expression. The answer is split into items byte by byte.
Bytes that may begin a separator or the closing tag are kept in `pending` until this is decided, so they never become
part of an item.
"""

import dataclasses
import functools
from collections.abc import Hashable, Sequence

import numpy as np
from jaxtyping import Int

SPACE = b" \t\n\r\v\f"
CLOSING = b"</answer>"

NO_ITEM, UNKNOWN, FIRST_ACTION = 0, 1, 2
"""Item that a byte completes: none, one that names no action, or `FIRST_ACTION + action id`."""


@dataclasses.dataclass(frozen=True)
class ByteMachine:
    """A deterministic automaton over bytes: state after a byte and item that it completes; `closed` absorbs."""

    next_state: Int[np.ndarray, "Q 256"]
    item: Int[np.ndarray, "Q 256"]
    start: int
    closed: int


@dataclasses.dataclass(frozen=True)
class _Element:
    """One element of the prelude: a byte of `allowed`, or any number of them if `repeats`."""

    allowed: frozenset[int]
    repeats: bool = False


@dataclasses.dataclass(frozen=True)
class _Answer:
    """State inside the answer."""

    item: bytes | None = b""
    """Lower-case bytes of the item so far, without leading spaces, as long as they are a prefix of an action's name;
    None if no action can match."""
    complete: bool = False
    """The item is a name that was followed by spaces."""
    pending: bytes = b""
    """Bytes that begin a separator or the closing tag."""


_CLOSED = "closed"
_BLOCK = 2048
"""Tokens that are composed at a time; limits the memory."""


def build(*, actions: tuple[bytes, ...], think: bool, forced: bool, separator: bytes) -> ByteMachine:
    """Builds the automaton of a response format; arguments as in `ResponseGrammar`, in bytes."""
    format_ = _Format(actions, separator, _prelude(think, forced))
    first: Hashable = format_.enter_prelude({0}) if format_.prelude else _Answer()
    state_ids: dict[Hashable, int] = {first: 0}
    states: list[Hashable] = [first]
    next_rows, item_rows = [], []
    relevant = format_.relevant_bytes()
    for state in states:  # grows
        other_byte = format_.move(state, 0xFF)  # 0xFF is in no UTF-8 text, so in no format
        moves = [format_.move(state, byte) if byte in relevant else other_byte for byte in range(256)]
        for after, _ in moves:
            if after not in state_ids:
                state_ids[after] = len(states)
                states.append(after)
        next_rows.append([state_ids[after] for after, _ in moves])
        item_rows.append([item for _, item in moves])
    return ByteMachine(np.array(next_rows, np.int32), np.array(item_rows, np.int32), 0, state_ids[_CLOSED])


def _prelude(think: bool, forced: bool) -> tuple[_Element, ...]:
    anything, space = _Element(frozenset(range(256)), True), _Element(frozenset(SPACE), True)

    def literal(text: bytes) -> tuple[_Element, ...]:
        return tuple(_Element(frozenset([byte])) for byte in text)

    opened = () if forced else (anything, *literal(b"<think>" if think else b"<answer>"))
    return (*opened, anything, *literal(b"</think>"), space, *literal(b"<answer>")) if think else opened


@dataclasses.dataclass(frozen=True)
class _Format:
    actions: tuple[bytes, ...]
    separator: bytes
    prelude: tuple[_Element, ...]

    @functools.cached_property
    def names(self) -> dict[bytes, int]:
        return {name.lower(): i for i, name in enumerate(self.actions)}

    @functools.cached_property
    def prefixes(self) -> set[bytes]:
        return {name[:k] for name in self.names for k in range(len(name) + 1)}

    def relevant_bytes(self) -> frozenset[int]:
        """Returns the bytes that the format mentions; all other bytes have the same effect."""
        literals = {byte for element in self.prelude if not element.repeats for byte in element.allowed}
        text = b"".join([*self.names, *(name.upper() for name in self.names), CLOSING, self.separator, SPACE])
        return frozenset(literals | set(text))

    def move(self, state: Hashable, byte: int) -> tuple[Hashable, int]:
        """Returns the state after `byte` and the item that it completes."""
        if isinstance(state, frozenset):  # in the prelude: its elements that may come next
            matching = (k for k in state if byte in self.prelude[k].allowed)
            return self.enter_prelude({k if self.prelude[k].repeats else k + 1 for k in matching}), NO_ITEM
        if isinstance(state, _Answer):
            return self._move_in_answer(state, byte)
        return state, NO_ITEM

    def enter_prelude(self, reached: set[int]) -> Hashable:
        """Returns the state for a set of elements, plus those reached by skipping elements with `repeats`."""
        elements = set()
        for k in sorted(reached):
            while k < len(self.prelude) and self.prelude[k].repeats:
                elements.add(k)
                k += 1
            elements.add(k)
        if len(self.prelude) in elements:
            return _Answer()
        # A gap that matches anything stays reachable, so elements before the last one cannot change the result.
        gaps = (k for k in elements if self.prelude[k].repeats and len(self.prelude[k].allowed) == 256)
        last_gap = max(gaps, default=0)
        return frozenset(k for k in elements if k >= last_gap)

    def _move_in_answer(self, state: _Answer, byte: int) -> tuple[Hashable, int]:
        pending = state.pending + bytes([byte])
        while not (CLOSING.startswith(pending) or self.separator.startswith(pending)):
            state, pending = self._extend_item(state, pending[0]), pending[1:]
        if pending == CLOSING:
            return _CLOSED, self._finish_item(state)
        if pending == self.separator:
            return _Answer(), self._finish_item(state)
        return dataclasses.replace(state, pending=pending), NO_ITEM

    def _extend_item(self, state: _Answer, byte: int) -> _Answer:
        is_space = byte in SPACE
        if state.item is None or (state.complete and is_space) or (state.item == b"" and is_space):
            return state
        longer = state.item + bytes([byte]).lower()
        if not state.complete and longer in self.prefixes:
            return _Answer(longer)
        if not state.complete and is_space and state.item.rstrip() in self.names:
            return _Answer(state.item.rstrip(), complete=True)
        return _Answer(None)

    def _finish_item(self, state: _Answer) -> int:
        if state.item == b"":
            return NO_ITEM
        if state.item is None or state.item.rstrip() not in self.names:
            return UNKNOWN
        return FIRST_ACTION + self.names[state.item.rstrip()]


def compose(
    machine: ByteMachine, token_bytes: Sequence[bytes | None]
) -> tuple[Int[np.ndarray, " V"], Int[np.ndarray, "Q C"], Int[np.ndarray, "Q C"], Int[np.ndarray, "F E"]]:
    """Composes the automaton over the bytes of every token; None or no bytes for a token that changes nothing.

    Tokens with the same effect in every state share a class, which keeps the tables small for large vocabularies.

    Returns `token_class`, `next_state`, `run` and `runs`: row `run[q, c]` of `runs` lists the items that a token of
    class `c` completes from state `q`, padded with `NO_ITEM`. Class 0 changes nothing.
    """
    states = machine.next_state.shape[0]
    next_flat, item_flat = machine.next_state.ravel(), machine.item.ravel().astype(np.int16)
    runs: dict[tuple[int, ...], int] = {(): 0}
    identity = np.stack([np.arange(states, dtype=np.int32), np.zeros(states, np.int32)])
    classes = {identity.tobytes(): 0}
    token_class = np.zeros(len(token_bytes), np.int32)
    encoded = [data or b"" for data in token_bytes]
    ids = sorted((i for i, data in enumerate(encoded) if data), key=lambda i: len(encoded[i]))
    for begin in range(0, len(ids), _BLOCK):
        chunk = ids[begin : begin + _BLOCK]
        state = np.tile(np.arange(states, dtype=np.int32), (len(chunk), 1))
        run = np.zeros_like(state)
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
                run[first:][where] = _append(runs, run[first:][where], item[where])
        for row, i in enumerate(chunk):
            token_class[i] = classes.setdefault(np.stack([state[row], run[row]]).tobytes(), len(classes))
    columns = np.frombuffer(b"".join(classes), np.int32).reshape(len(classes), 2, states)
    next_state, run_ids = np.ascontiguousarray(columns.transpose(1, 2, 0))
    width = max(1, *map(len, runs))
    padded_runs = np.array([[*run, *[NO_ITEM] * (width - len(run))] for run in runs], np.int32)
    return token_class, next_state, run_ids, padded_runs


def _append(runs: dict[tuple[int, ...], int], run: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Appends an item to each run and returns the ids of the results; new runs are added to `runs`."""
    pairs, inverse = np.unique(run.astype(np.int64) << 16 | item, return_inverse=True)
    known = list(runs)
    longer = [runs.setdefault((*known[pair >> 16], pair & 0xFFFF), len(runs)) for pair in pairs.tolist()]
    return np.array(longer, np.int32)[inverse.ravel()]
