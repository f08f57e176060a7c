"""Prompts: a prefix once per episode, then one message before every response.

A style (`agentrl_jax.text.styles`) defines the text. `compile_prompt` turns it into piece ids, so that on the device a
message is one row of ids and one lookup.

Shapes: `P` observation pieces, `O` tokens of a message, `A` actions per turn, `L` tokens of a response.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from agentrl_jax.text.canonical import CanonicalTable, build_canonical, encode_pieces, encode_row
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

    The table holds the observation's pieces, then `DIGIT_PIECES`, then the style's own pieces.

    Attributes:
        prefix: i32[Px] tokens at the start of an episode. NumPy.
        table: tokens of all pieces.
        prefix_pieces: the prefix as pieces.
        message_parts: the parts of a message, in order.
        message_ids: for each part, the ids of its pieces.
        response_pieces: pieces (before, between, after) the actions of a canonical response.
        response_ids: ids of `response_pieces`.
        actions: action names.
        action_ids: id of the first action's piece; the others follow.
        digit_ids: id of the first piece of `DIGIT_PIECES`.
        turn_digits: digits of the largest turn number.
        action_digits: digits of the action budget.
        max_message_tokens: `O`, enough for every message by pieces; the canonical encoder takes fewer tokens.
        max_action_tokens: tokens of the longest action name.
        encoder: name in `ENCODERS`.
    """

    prefix: np.ndarray
    table: PieceTable | CanonicalTable
    prefix_pieces: tuple[Piece, ...] = struct.field(pytree_node=False)
    message_parts: tuple[Segment, ...] = struct.field(pytree_node=False)
    message_ids: tuple[tuple[int, ...], ...] = struct.field(pytree_node=False)
    response_pieces: tuple[tuple[Piece, ...], tuple[Piece, ...], tuple[Piece, ...]] = struct.field(pytree_node=False)
    response_ids: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]] = struct.field(pytree_node=False)
    actions: tuple[str, ...] = struct.field(pytree_node=False)
    action_ids: int = struct.field(pytree_node=False)
    digit_ids: int = struct.field(pytree_node=False)
    turn_digits: int = struct.field(pytree_node=False)
    action_digits: int = struct.field(pytree_node=False)
    max_message_tokens: int = struct.field(pytree_node=False)
    max_action_tokens: int = struct.field(pytree_node=False)
    response_frame_tokens: tuple[int, int] = struct.field(pytree_node=False)
    encoder: str = struct.field(pytree_node=False)

    def max_response_tokens(self, actions: int) -> int:
        """Returns `L`, enough for every canonical response of at most `actions` actions."""
        frame, between = self.response_frame_tokens
        return frame + actions * self.max_action_tokens + max(actions - 1, 0) * between


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
    encoder: str = "pieces",
    plain: str | None = None,
    lists_actions: bool = True,
) -> Prompt:
    """Compiles a style for a task and a tokenizer. Runs on the host.

    Args:
        style: the prompt style.
        instruction: the task in words.
        legend: pairs (symbol, meaning); may be empty.
        actions: action names by action id.
        pieces: the environment's pieces; None if its observations are token ids, as for host environments.
        observation_pieces: `P`, length of an observation row.
        think: whether a response has a think block; passed to chat templates that read `enable_thinking`.
        forced: whether a message ends with the opening tag of the response.
        separator: text between two actions.
        max_actions_budget: actions per episode.
        max_turns: turns per episode.
        response_words: words that a response may have, stated in the prompt.
        tokenizer: the tokenizer.
        piece_limits: maximum occurrences of each piece in one observation; empty for no limit except `P`.
        encoder: name in `ENCODERS`.
        plain: for free-text responses, the opening that is inserted before them; None for responses in tags.
        lists_actions: whether the style may list the action names; responses use them in any case.

    Raises:
        ValueError: the tokenizer has no special tokens for a chat or changes a piece; its chat template cannot be
            expressed, or opens a think block although the response format has none; or `encoder` is unknown or cannot
            be used, see `canonical.build_canonical`.
    """
    if encoder not in ENCODERS:
        raise ValueError(f"encoder {encoder!r}; expected one of {', '.join(ENCODERS)}")
    chat = chat_format(tokenizer, thinking=think)
    task = Task(
        instruction=instruction,
        legend=legend,
        actions=actions if lists_actions else (),
        think=think,
        separator=separator,
        max_actions_budget=max_actions_budget,
        response_words=response_words,
    )
    prefix_pieces, parts = style.prefix(task, chat), style.message(task, chat)
    opening = ("<think>" if think else "<answer>",)
    inserted = chat.opening(opening[0], forced=forced) if plain is None else (plain,) if plain else ()
    parts = (*parts, Segment("text", inserted)) if inserted else parts
    before: tuple[Piece, ...] = (*(() if forced else opening), *(("</think>", "<answer>") if think else ()))
    between: tuple[Piece, ...] = (f" {separator} " if style.spaced else separator,)
    after: tuple[Piece, ...] = ("</answer>", Special(chat.end))

    # For observations that are token ids, piece i is token i.
    observed = tokenizer.vocab_size if pieces is None else len(pieces)
    own: list[Piece] = []

    def ids_of(wanted: Sequence[Piece]) -> tuple[int, ...]:
        first = observed + len(DIGIT_PIECES) + len(own)
        own.extend(wanted)
        return tuple(range(first, first + len(wanted)))

    action_ids = observed + len(DIGIT_PIECES)
    ids_of(actions)
    message_ids = tuple(ids_of(part.pieces) for part in parts)
    response_ids = (ids_of(before), ids_of(between), ids_of(after))
    all_pieces = (*(pieces or ()), *DIGIT_PIECES, *own)
    by_pieces = build_table(tokenizer, all_pieces)
    if pieces is None:
        by_pieces = PieceTable(
            tokens=jnp.concatenate([jnp.arange(observed, dtype=jnp.int32), by_pieces.tokens]),
            offsets=jnp.concatenate([jnp.arange(observed, dtype=jnp.int32), observed + by_pieces.offsets]),
            pad_id=by_pieces.pad_id,
        )
    lengths = np.diff(by_pieces.offsets)
    turn_digits, action_digits = len(str(max_turns)), len(str(max_actions_budget))
    limits = piece_limits or (observation_pieces,) * observed

    def longest_message(lengths: np.ndarray) -> int:
        digit = int(lengths[observed:action_ids].max())
        widths = {
            "text": 0,
            "observation": _most_tokens(lengths[:observed], limits, observation_pieces),
            "turn": digit * turn_digits,
            "actions_left": digit * action_digits,
            "reward": digit * (2 + REWARD_DIGITS + REWARD_DECIMALS),
        }
        return sum(widths[part.kind] + int(lengths[list(ids)].sum()) for part, ids in zip(parts, message_ids))

    table: PieceTable | CanonicalTable = by_pieces
    prefix = [t for piece in prefix_pieces for t in encode_piece(tokenizer, piece)]
    if encoder == "canonical":
        if pieces is None:
            raise ValueError("encoder canonical is for compiled environments; use encoder pieces with others")
        sizes = np.array([1 if isinstance(piece, Special) else len(piece.encode()) for piece in all_pieces])
        named = sizes[action_ids : action_ids + len(actions)].max(initial=0) + sizes[list(response_ids[1])].sum()
        longest_response = int(sizes[[*response_ids[0], *response_ids[2]]].sum() + max_actions_budget * named)
        table = build_canonical(tokenizer, all_pieces, max(longest_message(sizes), longest_response))
        prefix = _canonical_prefix(tokenizer, prefix_pieces, parts, pieces)
    frame = int(lengths[[*response_ids[0], *response_ids[2]]].sum())
    return Prompt(
        prefix=np.array(prefix, np.int32),
        table=table,
        prefix_pieces=prefix_pieces,
        message_parts=parts,
        message_ids=message_ids,
        response_pieces=(before, between, after),
        response_ids=response_ids,
        actions=actions,
        action_ids=action_ids,
        digit_ids=observed,
        turn_digits=turn_digits,
        action_digits=action_digits,
        max_message_tokens=longest_message(lengths),
        max_action_tokens=int(lengths[action_ids : action_ids + len(actions)].max(initial=0)),
        response_frame_tokens=(frame, int(lengths[list(response_ids[1])].sum())),
        encoder=encoder,
    )


def message(
    prompt: Prompt,
    observation: jax.Array,
    *,
    turn: jax.Array,
    actions_left: jax.Array,
    reward: jax.Array,
    first: jax.Array,
    response_ended: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Returns the message: all tokens inserted before the next response.

    Args:
        prompt: the compiled prompt.
        observation: i32[P] piece ids (token ids if the prompt was compiled with `pieces=None`); negative for no piece.
        turn: i32[] index of the next turn, from 0; shown from 1.
        actions_left: i32[] actions left in the episode.
        reward: f32[] reward of the last turn.
        first: bool[] the message directly follows the prefix.
        response_ended: bool[] the last response ended by sampling a stop token; then no end-of-turn token is inserted.

    Returns:
        (i32[O] tokens, padded on the right; i32[] true length).
    """
    conditions = {"always": jnp.bool_(True), "first": first, "later": ~first, "unended": ~first & ~response_ended}
    rows = []
    for part, own in zip(prompt.message_parts, prompt.message_ids):
        if part.kind == "observation":
            row = observation
        elif part.kind == "turn":
            row = _digits(prompt, turn + 1, 0, prompt.turn_digits)
        elif part.kind == "actions_left":
            row = _digits(prompt, actions_left, 0, prompt.action_digits)
        elif part.kind == "reward":
            row = _digits(prompt, reward, REWARD_DECIMALS, REWARD_DIGITS)
        else:
            row = jnp.array(own, jnp.int32)
        rows.append(row if part.when == "always" else jnp.where(conditions[part.when], row, -1))
    return ENCODERS[prompt.encoder](prompt.table, jnp.concatenate(rows), prompt.max_message_tokens)


def response(
    prompt: Prompt, actions: jax.Array, count: jax.Array, max_tokens: int | None = None
) -> tuple[jax.Array, jax.Array]:
    """Returns the canonical response for some actions, with an empty think block.

    It goes from after the forced tag to the end-of-turn token; all of its tokens count as sampled.

    Args:
        prompt: the compiled prompt.
        actions: i32[A] action ids.
        count: i32[] number of actions to use.
        max_tokens: static `L`; by default enough for `A` actions.

    Returns:
        (i32[L] tokens, padded on the right; i32[] true length).
    """
    before, between, after = (jnp.array(ids, jnp.int32) for ids in prompt.response_ids)
    slots = jnp.arange(actions.shape[0])
    named = jnp.where(slots < count, prompt.action_ids + actions, -1)
    joined = jnp.where((slots > 0) & (slots < count), between, -1)
    ids = jnp.concatenate([before, jnp.stack([joined, named], axis=1).ravel(), after])
    size = prompt.max_response_tokens(actions.shape[0]) if max_tokens is None else max_tokens
    return ENCODERS[prompt.encoder](prompt.table, ids, size)


def _canonical_prefix(
    tokenizer: Tokenizer, prefix: Sequence[Piece], parts: Sequence[Segment], pieces: Sequence[str]
) -> list[int]:
    """Tokens of the prefix before a first message, as the tokenizer encodes them; only its beginning must be known."""
    first = next(part for part in parts if part.when in ("always", "first"))
    if first.kind == "text":
        specials = [i for i, piece in enumerate(first.pieces) if isinstance(piece, Special)]
        beginnings = {"".join(_spell(first.pieces[: specials[0] if specials else None]))}
    else:
        beginnings = {piece[:1] for piece in (pieces if first.kind == "observation" else DIGIT_PIECES)}
    found = {tuple(encode_pieces(tokenizer, prefix, beginning)) for beginning in beginnings}
    if len(found) > 1:
        raise ValueError("the prefix has other tokens with every observation, which follows it; use encoder pieces")
    return list(found.pop())


def _most_tokens(lengths: np.ndarray, limits: Sequence[int], size: int) -> int:
    """Maximum total tokens of `size` pieces, if piece i may occur `limits[i]` times: takes the longest ones first."""
    order = np.argsort(-lengths)
    limit = np.asarray(limits)[order]
    taken = np.clip(size - (np.cumsum(limit) - limit), 0, limit)
    return int(np.sum(taken * lengths[order]))


def _spell(pieces: Sequence[Piece]) -> list[str]:
    return [piece.name if isinstance(piece, Special) else piece for piece in pieces]


def _digits(prompt: Prompt, value: jax.Array, decimals: int, integer_digits: int) -> jax.Array:
    ids = number_pieces(value, decimals, integer_digits)
    return jnp.where(ids >= 0, prompt.digit_ids + ids, -1)
