"""A prompt's prefix, messages and responses as text, to compare their tokens with."""

from collections.abc import Sequence

import numpy as np

from agentrl_jax.text.pieces import Piece, Special
from agentrl_jax.text.prompt import REWARD_DECIMALS, REWARD_DIGITS, Prompt


def prefix_text(prompt: Prompt) -> str:
    """Returns the prefix as text, with special tokens by name."""
    return "".join(_spell(prompt.prefix_pieces))


def message_text(
    prompt: Prompt,
    observation: str,
    *,
    turn: int,
    actions_left: int,
    reward: float,
    first: bool,
    response_ended: bool,
) -> str:
    """Returns the text of `message`, with the same arguments but the observation as text; special tokens by name."""
    shown = {"always": True, "first": first, "later": not first, "unended": not first and not response_ended}
    values = {
        "observation": observation,
        "turn": format_number(turn + 1, 0, prompt.turn_digits),
        "actions_left": format_number(actions_left, 0, prompt.action_digits),
        "reward": format_number(reward, REWARD_DECIMALS, REWARD_DIGITS),
    }
    parts = [part for part in prompt.message_parts if shown[part.when]]
    return "".join("".join(_spell(part.pieces)) if part.kind == "text" else values[part.kind] for part in parts)


def response_text(prompt: Prompt, actions: Sequence[int]) -> str:
    """Returns the text of `response` for a list of action ids, with the end-of-turn token by name."""
    before, between, after = ("".join(_spell(pieces)) for pieces in prompt.response_pieces)
    return before + between.join(prompt.actions[a] for a in actions) + after


def _spell(pieces: Sequence[Piece]) -> list[str]:
    return [piece.name if isinstance(piece, Special) else piece for piece in pieces]


def format_number(value: float, decimals: int, integer_digits: int = 4) -> str:
    """Returns the text that `number_pieces` writes for `value`, for instance "-0.1", "10.9" or "0.0"."""
    limit = 10 ** (decimals + integer_digits) - 1
    with np.errstate(over="ignore"):
        scaled = int(np.clip(np.rint(np.float32(value) * np.float32(10**decimals)), -limit, limit))
    digits = str(abs(scaled)).rjust(decimals + 1, "0")
    whole, fraction = digits[: len(digits) - decimals], digits[len(digits) - decimals :]
    return ("-" if scaled < 0 else "") + whole + ("." + fraction if decimals else "")
