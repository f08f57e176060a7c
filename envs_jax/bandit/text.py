"""Text of a bandit: the pieces that observations consist of, and the piece ids of an observation."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32

from envs_jax.environment import NO_PIECE

RULES = (
    "There are two arms to choose from: ",
    " and ",
    ". What an arm pays has to do with what its name means. Choose the one that you expect to pay more, ",
    " or ",
    ", by its name.",
)
"""Text around the names: first, second, first, second."""

MAX_TENTHS = 9999
"""Rewards are written in tenths, from minus this many to plus this many."""


Describe = Callable[[Int[Array, "2"], Int[Array, ""], Float[Array, ""]], Int32[Array, "9"]]
"""(arms shown, chosen arm, its reward) -> piece ids, padded on the right."""


def make_describe(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[int, ...], Describe]:
    """Returns the pieces, the most occurrences of each in one observation, and the function that describes a state.

    `names` are by action id. While the chosen arm is negative, the text is the rules with the arms in the order shown;
    then it is the reward of the chosen arm.
    """
    digits = tuple("0123456789")
    pieces = (*names, *RULES, *digits, ": ", "-", ".", " points", " is not one of the two arms.")
    rules, digit, colon, minus, point, points, unknown = (
        pieces.index(text, len(names)) for text in (RULES[0], digits[0], *pieces[-5:])
    )

    # The rules name both arms twice; a reward has four digits at most.
    limits = (2,) * len(names) + (1,) * len(RULES) + (4,) * len(digits) + (1,) * 5

    def row(*ids: jax.Array | int) -> jax.Array:
        return jnp.stack([jnp.int32(i) for i in ids])

    def describe(shown: jax.Array, chosen: jax.Array, reward: jax.Array) -> jax.Array:
        question = row(rules, shown[0], rules + 1, shown[1], rules + 2, shown[0], rules + 3, shown[1], rules + 4)
        tenths = jnp.clip(jnp.round(reward * 10), -MAX_TENTHS, MAX_TENTHS).astype(jnp.int32)
        size = jnp.abs(tenths)
        digit_pieces = [
            jnp.where((size >= 10 * unit) | (unit == 1), digit + size // (10 * unit) % 10, NO_PIECE)
            for unit in (100, 10, 1)
        ]
        sign = jnp.where(tenths < 0, minus, NO_PIECE)
        answer = row(chosen, colon, sign, *digit_pieces, point, digit + size % 10, points)
        refusal = row(chosen, unknown, *[NO_PIECE] * 7)
        ids = jnp.where(chosen < 0, question, jnp.where(jnp.any(shown == chosen), answer, refusal))
        return ids[jnp.argsort(ids == NO_PIECE, stable=True)]

    return pieces, limits, describe
