"""Text of a bandit: the pieces that observations consist of, and the piece ids of an observation."""

import functools
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

MAX_REWARD, EXACT_BELOW = 999.9, 100
"""Largest absolute reward that is written, with one decimal; below `EXACT_BELOW` with two, if the second is not 0."""


Describe = Callable[[Int[Array, "2"], Int[Array, ""], Float[Array, ""]], Int32[Array, "9"]]
"""(arms shown, chosen arm, its reward) -> piece ids, padded on the right."""


# Kept, so that environments with the same text are equal, see `TextEnvironment.__eq__`.
@functools.lru_cache(maxsize=64)
def make_describe(names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[int, ...], Describe]:
    """Returns the pieces, the most occurrences of each in one observation, and the function that describes a state.

    `names` are by action id. While the chosen arm is negative, the text is the rules with the arms in the order shown;
    then it is the reward of the chosen arm, see `is_written`.
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
        clipped = jnp.clip(reward, -MAX_REWARD, MAX_REWARD)
        exact = jnp.abs(clipped) < EXACT_BELOW
        hundredths = jnp.where(exact, jnp.round(clipped * 100), jnp.round(clipped * 10) * 10).astype(jnp.int32)
        size = jnp.abs(hundredths)
        whole = [
            jnp.where((size >= 100 * unit) | (unit == 1), digit + size // (100 * unit) % 10, NO_PIECE)
            for unit in (100, 10, 1)
        ]
        last = jnp.where(size % 10 > 0, digit + size % 10, NO_PIECE)
        sign = jnp.where(hundredths < 0, minus, NO_PIECE)
        answer = row(chosen, colon, sign, *whole, point, digit + size // 10 % 10, last, points)
        # There is a third digit before the point or a second one after it, so that a row of nine is enough.
        answer = answer[jnp.argsort(answer == NO_PIECE, stable=True)][:9]
        refusal = row(chosen, unknown, *[NO_PIECE] * 7)
        return jnp.where(chosen < 0, question, jnp.where(jnp.any(shown == chosen), answer, refusal))

    return pieces, limits, describe


def is_written(reward: float) -> bool:
    """Returns whether the text shows a reward as it is paid: without its hundredths from `EXACT_BELOW` on."""
    steps = reward * (100 if abs(reward) < EXACT_BELOW else 10)
    return abs(reward) <= MAX_REWARD and abs(steps - round(steps)) < 1e-4
