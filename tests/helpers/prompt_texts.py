"""A prompt's prefix, messages and responses as text, to compare their tokens with."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from agentrl_jax.rollout.trajectory import Response
from agentrl_jax.text.canonical import CanonicalTable
from agentrl_jax.text.chat import chat_format
from agentrl_jax.text.pieces import Piece, Special
from agentrl_jax.text.prompt import REWARD_DECIMALS, REWARD_DIGITS, Prompt
from agentrl_jax.text.styles import Task, get_style
from agentrl_jax.text.tokenizer import Tokenizer


def prefix_text(prompt: Prompt, tokenizer: Tokenizer) -> str:
    return tokenizer.decode(prompt.prefix.tolist(), skip_special=False)


def expected_prefix(style: str, tokenizer: Tokenizer, **task) -> str:
    return spell(get_style(style).prefix(Task(**task), chat_format(tokenizer, task["think"])))


def message_text(prompt: Prompt, observation: str, *, retry: bool = False, **fields) -> str:
    """Returns the text of `message`, with the same arguments but the observation as text; special tokens by name."""
    first, ended = fields["first"], fields["response_ended"]
    shown = {"always": True, "first": first, "later": not first, "unended": not first and not ended, "retry": retry}
    values = {
        "observation": observation,
        "turn": format_number(fields["turn"] + 1, 0, prompt.turn_digits),
        "actions_left": format_number(fields["actions_left"], 0, prompt.action_digits),
        "reward": format_number(fields["reward"], REWARD_DECIMALS, REWARD_DIGITS),
    }
    parts = [part for part in prompt.message_parts if shown[part.when]]
    return "".join(spell(part.pieces) if part.kind == "text" else values[part.kind] for part in parts)


def response_text(prompt: Prompt, tokenizer: Tokenizer, actions: Sequence[int]) -> str:
    """Returns the text of `response` for a list of action ids, with the end-of-turn token by name."""
    table = prompt.table.byte_tokens if isinstance(prompt.table, CanonicalTable) else prompt.table
    tokens, offsets = np.asarray(table.tokens), np.asarray(table.offsets)

    def text(ids: Sequence[int]) -> str:
        pieces = [tokens[offsets[i] : offsets[i + 1]].tolist() for i in ids]
        return "".join(tokenizer.decode(piece, skip_special=False) for piece in pieces)

    before, between, after = map(text, prompt.response_ids)
    return before + between.join(text([prompt.action_ids + action]) for action in actions) + after


def given_responses(tokenizer: Tokenizer, texts: Sequence[Sequence[str]], width: int) -> Response:
    """Responses [E, T, width] with the texts of each turn of each episode; they end where a text ends with <|end|>."""
    shape = len(texts), max(map(len, texts))
    tokens, length = np.zeros((*shape, width), np.int32), np.ones(shape, np.int32)
    for row, of_episode in enumerate(texts):
        for turn, text in enumerate(of_episode):
            ids = tokenizer.encode(text.removesuffix("<|end|>"))
            ids = [*ids, tokenizer.end_of_turn_id][:width] if text.endswith("<|end|>") else ids[:width]
            tokens[row, turn, : len(ids)], length[row, turn] = ids, len(ids)
    return jax.tree.map(
        jnp.asarray, Response(tokens, length, np.zeros(tokens.shape, np.float32), np.zeros(shape, bool))
    )


def spell(pieces: Sequence[Piece]) -> str:
    return "".join(piece.name if isinstance(piece, Special) else piece for piece in pieces)


def format_number(value: float, decimals: int, integer_digits: int = 4) -> str:
    """Returns the text that `number_pieces` writes for `value`, for instance "-0.1", "10.9" or "0.0"."""
    limit = 10 ** (decimals + integer_digits) - 1
    with np.errstate(over="ignore"):
        scaled = int(np.clip(np.rint(np.float32(value) * np.float32(10**decimals)), -limit, limit))
    digits = str(abs(scaled)).rjust(decimals + 1, "0")
    whole, fraction = digits[: len(digits) - decimals], digits[len(digits) - decimals :]
    return ("-" if scaled < 0 else "") + whole + ("." + fraction if decimals else "")
