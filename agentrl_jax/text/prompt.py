"""Prompts: a prefix once per episode, then one message before every response.

A style (`agentrl_jax.text.styles`) defines the text. `compile_prompt` turns it into piece ids, so that on the device a
message is one row of ids and one lookup.

Shapes: `P` observation pieces, `O` tokens of a message, `A` actions per turn, `L` tokens of a response.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int

from agentrl_jax.errors import BadValue
from agentrl_jax.text.canonical import CanonicalTable, build_canonical, encode_prefix, encode_row
from agentrl_jax.text.chat import chat_format
from agentrl_jax.text.numbers import DIGIT_PIECES, number_pieces
from agentrl_jax.text.pieces import Piece, PieceTable, Special, build_table, encode_piece, expand
from agentrl_jax.text.styles import PromptStyle, Segment, Task
from agentrl_jax.text.tokenizer import Tokenizer

REWARD_DECIMALS = 1
REWARD_DIGITS = 4
"""Digits before the point of a reward; larger rewards are shown as 9999.9."""

ENCODERS: dict[str, Callable[[Any, jax.Array, int], tuple[jax.Array, jax.Array]]] = {
    "pieces": expand,
    "canonical": encode_row,
}
"""Encoders from piece ids to tokens: pieces separately, or the whole text as the tokenizer encodes it."""


class Prompt(struct.PyTreeNode):
    """A style compiled for one task and one tokenizer.

    The table holds the observation's pieces, then `DIGIT_PIECES`, the action names, and the style's pieces.

    Attributes:
        prefix: tokens at the start of an episode. NumPy.
        message_ids: for each part of a message, the ids of its pieces.
        response_ids: ids of the pieces (before, between, after) the actions of a canonical response.
        action_ids: id of the first action's piece; the others follow.
        digit_ids: id of the first piece of `DIGIT_PIECES`.
        turn_digits: digits of the largest turn number.
        action_digits: digits of the action budget.
        max_message_tokens: `O`, enough for every message by pieces. Joined text nearly always has fewer tokens; where
            it has more, `message` returns a length above `O`, and the episode is marked (`Trajectory.overflow`).
        response_tokens: tokens of a canonical response: around the actions, between two, and of the longest action.
        hint_at: tokens of the prefix before a hint, see `rollout.hints`; meaningless with the canonical encoder.
    """

    prefix: np.ndarray
    table: PieceTable | CanonicalTable
    message_parts: tuple[Segment, ...] = struct.field(pytree_node=False)
    message_ids: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)
    response_ids: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] = struct.field(pytree_node=False)
    action_ids: int = struct.field(pytree_node=False)
    digit_ids: int = struct.field(pytree_node=False)
    turn_digits: int = struct.field(pytree_node=False)
    action_digits: int = struct.field(pytree_node=False)
    max_message_tokens: int = struct.field(pytree_node=False)
    response_tokens: tuple[int, int, int] = struct.field(pytree_node=False)
    encoder: str = struct.field(pytree_node=False)
    hint_at: int = struct.field(pytree_node=False)

    def max_response_tokens(self, actions: int) -> int:
        """Returns `L`, enough for every canonical response of at most `actions` actions."""
        around, between, action = self.response_tokens
        return around + actions * action + max(actions - 1, 0) * between


def compile_prompt(
    style: PromptStyle,
    *,
    instruction: str,
    legend: tuple[tuple[str, str], ...],
    actions: tuple[str, ...],
    pieces: tuple[str, ...] | None,
    observation_pieces: int,
    think: bool,
    forced: bool,
    separator: str,
    max_actions_budget: int,
    max_turns: int,
    response_words: int,
    tokenizer: Tokenizer,
    piece_limits: tuple[int, ...] = (),
    piece_groups: tuple[tuple[int, int, int], ...] = (),
    encoder: str = "pieces",
    plain: str | None = None,
    lists_actions: bool = True,
    feedback: str = "",
    commands: tuple[str, ...] = (),
) -> Prompt:
    """Compiles a style for a task and a tokenizer. Runs on the host.

    `legend` has pairs (symbol, meaning). `pieces` are the environment's; None if its observations are token ids, as for
    host environments. An observation has `P` = `observation_pieces` ids, with piece i at most `piece_limits[i]` times
    (empty: no limit), and as `TextEnvironment.piece_groups` says. `think` asks for a think block and sets
    `enable_thinking` in chat templates that read it. With `forced`, messages end with the opening tag of the response.
    For free-text responses, `plain` is the opening that is inserted before them; None for responses in tags.
    `response_words` is the limit that the prompt names. With `lists_actions`, the style may list the action names;
    responses use them in any case. `feedback`, if given, is the text before the first observation of a retry. With
    `commands`, the response is one of them, as they are listed (`grammar.CommandGrammar.listed`); then no tag is
    inserted before it but that of a thought.

    Raises:
        ValueError: the tokenizer has no special tokens for a chat or changes a piece; its chat template cannot be
            expressed, or opens a think block although the response format has none; or `encoder` is unknown or cannot
            be used, see `canonical.build_canonical`.
    """
    if encoder not in ENCODERS:
        raise BadValue.of("encoder", encoder, f"expected one of {', '.join(ENCODERS)}")
    chat = chat_format(tokenizer, thinking=think)
    listed = (commands or actions) if lists_actions else ()
    shown = "" if commands else separator
    task = Task(instruction, legend, listed, think, shown, max_actions_budget, response_words, feedback)
    if commands:
        task = dataclasses.replace(task, block="one of the actions")
    prefix_pieces, parts = style.prefix(task, chat), style.message(task, chat)
    opening = "<think>" if think else "" if commands else "<answer>"
    forced = forced and bool(opening)
    inserted = chat.opening(opening, forced=forced) if plain is None else () if chat.opens(plain) else (plain,)
    parts = (*parts, Segment("text", inserted)) if inserted else parts
    before = (*(() if forced else (opening,)), *(("</think>", "<answer>") if think else ()))
    between = f" {separator} " if style.spaced else separator

    # For observations that are token ids, piece i is token i.
    num_observed = tokenizer.vocab_size if pieces is None else len(pieces)
    action_ids = num_observed + len(DIGIT_PIECES)
    all_pieces: list[Piece] = [*(pieces or ()), *DIGIT_PIECES]

    def add(wanted: Sequence[Piece]) -> tuple[int, ...]:
        first = len(all_pieces) + (num_observed if pieces is None else 0)
        all_pieces.extend(wanted)
        return tuple(range(first, first + len(wanted)))

    add(actions)
    message_ids = tuple(add(part.pieces) for part in parts)
    response_ids = (add(before), add((between,)), add(("</answer>", Special(chat.end_of_turn))))
    by_pieces = build_table(tokenizer, all_pieces)
    if pieces is None:
        by_pieces = PieceTable(
            tokens=jnp.concatenate([jnp.arange(num_observed, dtype=jnp.int32), by_pieces.tokens]),
            offsets=jnp.concatenate([jnp.arange(num_observed, dtype=jnp.int32), num_observed + by_pieces.offsets]),
            pad_id=by_pieces.pad_id,
        )
    turn_digits, action_digits = len(str(max_turns)), len(str(max_actions_budget))
    limits = piece_limits or (observation_pieces,) * num_observed

    def longest_message(lengths: np.ndarray) -> int:
        digit = int(lengths[num_observed:action_ids].max())
        value_lengths = {
            "text": 0,
            "observation": _longest(lengths[:num_observed], limits, piece_groups, observation_pieces),
            "turn": digit * turn_digits,
            "actions_left": digit * action_digits,
            "reward": digit * (2 + REWARD_DIGITS + REWARD_DECIMALS),
        }
        return sum(value_lengths[part.kind] + int(lengths[list(ids)].sum()) for part, ids in zip(parts, message_ids))

    def response_lengths(lengths: np.ndarray) -> tuple[int, int, int]:
        around = int(lengths[[*response_ids[0], *response_ids[2]]].sum())
        longest_action = int(lengths[action_ids : action_ids + len(actions)].max(initial=0))
        return around, int(lengths[list(response_ids[1])].sum()), longest_action

    table: PieceTable | CanonicalTable = by_pieces
    prefix = [token for piece in prefix_pieces for token in encode_piece(tokenizer, piece)]
    hint_at = len(prefix) - sum(len(encode_piece(tokenizer, piece)) for piece in style.closing(chat))
    if encoder == "canonical":
        if pieces is None:
            raise BadValue(
                "encoder canonical is for compiled environments; set prompt.encoder to pieces for others",
                key="prompt.encoder",
            )
        sizes = np.array([1 if isinstance(piece, Special) else len(piece.encode()) for piece in all_pieces])
        around_size, between_size, action_size = response_lengths(sizes)
        longest_response = around_size + max_actions_budget * (action_size + between_size)
        table = build_canonical(tokenizer, all_pieces, max(longest_message(sizes), longest_response))
        prefix = _canonical_prefix(tokenizer, prefix_pieces, parts, pieces)
    lengths = np.diff(by_pieces.offsets)
    return Prompt(
        prefix=np.array(prefix, np.int32),
        table=table,
        message_parts=parts,
        message_ids=message_ids,
        response_ids=response_ids,
        action_ids=action_ids,
        digit_ids=num_observed,
        turn_digits=turn_digits,
        action_digits=action_digits,
        max_message_tokens=longest_message(lengths),
        response_tokens=response_lengths(lengths),
        encoder=encoder,
        hint_at=hint_at,
    )


def message(
    prompt: Prompt,
    observation: Int[Array, " P"],
    *,
    turn: Int[Array, ""],
    actions_left: Int[Array, ""],
    reward: Float[Array, ""],
    first: Bool[Array, ""],
    response_ended: Bool[Array, ""],
    retry: Bool[Array, ""] | bool = False,
) -> tuple[Int[Array, " O"], Int[Array, ""]]:
    """Returns the message: all tokens inserted before the next response, padded on the right, and their true number.

    The observation has piece ids (token ids if the prompt was compiled with `pieces=None`); negative for no piece.
    `turn` is the index of the next turn, shown from 1; `reward` is that of the last turn. A `first` message directly
    follows the prefix. If the last response ended by sampling a stop token, no end-of-turn token is inserted.
    A message with `retry` begins another attempt, and holds the prompt's feedback.
    """
    conditions = {"first": first, "later": ~first, "unended": ~first & ~response_ended, "retry": jnp.asarray(retry)}
    numbers = _numbers(prompt, turn, actions_left, reward)
    rows = []
    for part, ids in zip(prompt.message_parts, prompt.message_ids):
        row = observation if part.kind == "observation" else _fixed(prompt, part, ids, numbers)
        rows.append(row if part.when == "always" else jnp.where(conditions[part.when], row, -1))
    return ENCODERS[prompt.encoder](prompt.table, jnp.concatenate(rows), prompt.max_message_tokens)


def message_lead(
    prompt: Prompt,
    *,
    turn: Int[Array, ""],
    actions_left: Int[Array, ""],
    reward: Float[Array, ""],
    first: Bool[Array, ""],
    response_ended: Bool[Array, ""],
) -> Int[Array, ""]:
    """How many of the first tokens of a `message` join it to the response before; without them, it follows the prefix.

    0 with the canonical encoder, whose tokens need not end where parts do.
    """
    if not isinstance(prompt.table, PieceTable):
        return jnp.int32(0)
    numbers, offsets, total = _numbers(prompt, turn, actions_left, reward), prompt.table.offsets, jnp.int32(0)
    for part, ids in zip(prompt.message_parts, prompt.message_ids):
        if part.when not in ("later", "unended", "first"):
            break
        if part.when != "first":
            row = _fixed(prompt, part, ids, numbers)
            length = jnp.where(row >= 0, offsets[row + 1] - offsets[row], 0)
            shown = ~first if part.when == "later" else ~first & ~response_ended
            total += jnp.where(shown, jnp.sum(length, dtype=jnp.int32), 0)
    return total


_Numbers = dict[str, tuple[jax.Array, int, int]]


def _numbers(prompt: Prompt, turn: jax.Array, actions_left: jax.Array, reward: jax.Array) -> _Numbers:
    """The numbers of a message: value, digits after the point, digits before it."""
    return {
        "turn": (turn + 1, 0, prompt.turn_digits),
        "actions_left": (actions_left, 0, prompt.action_digits),
        "reward": (reward, REWARD_DECIMALS, REWARD_DIGITS),
    }


def _fixed(prompt: Prompt, part: Segment, ids: Sequence[int], numbers: _Numbers) -> Int[Array, " pieces"]:
    """The pieces of a part that is no observation; -1 for none."""
    if part.kind not in numbers:
        return jnp.array(ids, jnp.int32)
    digits = number_pieces(*numbers[part.kind])
    return jnp.where(digits >= 0, prompt.digit_ids + digits, -1)


def response(
    prompt: Prompt, actions: Int[Array, " A"], count: Int[Array, ""], max_tokens: int | None = None
) -> tuple[Int[Array, " L"], Int[Array, ""]]:
    """Returns the canonical response for the first `count` actions, with an empty think block, and its true length.

    It goes from after the forced tag to the end-of-turn token; all of its tokens count as sampled. It is padded on the
    right to the static length `max_tokens`, by default enough for `A` actions.
    """
    before, between, after = (jnp.array(ids, jnp.int32) for ids in prompt.response_ids)
    indices = jnp.arange(actions.shape[0])
    names = jnp.where(indices < count, prompt.action_ids + actions, -1)
    separators = jnp.where((indices > 0) & (indices < count), between, -1)
    ids = jnp.concatenate([before, jnp.stack([separators, names], axis=1).ravel(), after])
    size = prompt.max_response_tokens(actions.shape[0]) if max_tokens is None else max_tokens
    return ENCODERS[prompt.encoder](prompt.table, ids, size)


def _canonical_prefix(
    tokenizer: Tokenizer, prefix: Sequence[Piece], parts: Sequence[Segment], pieces: Sequence[str]
) -> list[int]:
    """Encodes the prefix before a first message; only the message's beginning must be known."""
    beginnings: set[str] = set()
    for shown in (("always", "first"), ("always", "first", "retry")):
        first = next(part for part in parts if part.when in shown and (part.kind != "text" or part.pieces))
        if first.kind == "text":
            text = itertools.takewhile(lambda piece: not isinstance(piece, Special), first.pieces)
            beginnings.add("".join(map(str, text)))
        else:
            beginnings |= set(pieces if first.kind == "observation" else DIGIT_PIECES)
    found = {tuple(encode_prefix(tokenizer, prefix, beginning)) for beginning in beginnings}
    if len(found) > 1:
        raise BadValue(
            "the prefix has other tokens with every observation, which follows it; set prompt.encoder to pieces",
            key="prompt.encoder",
        )
    return list(found.pop())


def _longest(lengths: np.ndarray, limits: Sequence[int], groups: Sequence[tuple[int, int, int]], size: int) -> int:
    """Returns the maximum total length of `size` pieces, if piece i may occur `limits[i]` times, those from `first` to
    `end` - 1 of a group (first, end, most) `most` times together."""
    numbers = np.array(limits)
    for first, end, most in groups:
        numbers[first:end] = _of_the_longest(lengths[first:end], numbers[first:end], most)
    return int(np.sum(_of_the_longest(lengths, numbers, size) * lengths))


def _of_the_longest(lengths: np.ndarray, limits: np.ndarray, size: int) -> np.ndarray:
    """Returns how often each piece is taken, if `size` pieces are, the longest first."""
    order = np.argsort(-lengths)
    limit, taken = limits[order], np.zeros_like(limits)
    taken[order] = np.clip(size - (np.cumsum(limit) - limit), 0, limit)
    return taken
