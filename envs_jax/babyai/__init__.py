"""BabyAI with AgentGym's text and actions: levels, environment, recorded items, policies and search."""

import re
from collections.abc import Callable, Sequence
from functools import partial

from envs_jax.babyai import items
from envs_jax.babyai.env import BabyAI, BabyAIParams, PrimitiveBabyAI
from envs_jax.babyai.generator import NAMES, make_generator, shape_of
from envs_jax.babyai.state import BabyAIState
from envs_jax.errors import BadValue

__all__ = ["NAMES", "TAGS", "BabyAI", "BabyAIParams", "BabyAIState", "PrimitiveBabyAI", "make_babyai"]

MOST_NUMBERS = 400
"""Most numbers of levels in a mixture, repeated ones included."""

ACTIONS = {"macro": BabyAI, "primitive": PrimitiveBabyAI}
"""Environments by the kind of their actions."""


def make_babyai(
    numbers: str | Sequence[int] = items.NUMBERS,
    mode: str = "intended",
    objects_shown: int | None = None,
    goal: str = "first",
    actions: str = "macro",
) -> tuple[BabyAI, BabyAIParams]:
    """Makes a BabyAI whose levels are generated on the device, each of one of the numbers with the same probability.

    The numbers are 1 to 40, also as text such as "1-11,19"; by default the eighteen of AgentGym-RL's items. A number
    that is listed twice is twice as likely. `actions` are AgentGym's ("macro") or MiniGrid's ("primitive", only with
    the mode "intended"). For the other options see `BabyAI`. Raises a `ValueError` for options that are not usable.
    """
    numbers = _numbers(numbers) if isinstance(numbers, str) else tuple(numbers)
    if not 0 < len(numbers) <= MOST_NUMBERS or any(number not in NAMES for number in numbers):
        raise BadValue(
            f"numbers is {list(numbers)}; expected 1 to {MOST_NUMBERS} numbers of levels from 1 to {len(NAMES)}",
            "numbers",
            numbers,
        )
    if actions not in ACTIONS:
        raise BadValue(f"actions is {actions!r}; expected one of {', '.join(ACTIONS)}", "actions", actions)
    if actions == "primitive" and mode != "intended":
        raise BadValue(
            f"actions is primitive, which AgentGym does not have, but mode is {mode!r}; use intended", "mode", mode
        )
    shape = shape_of(numbers)
    env = ACTIONS[actions](
        shape, make_generator(numbers, shape, upstream=mode == "upstream"), mode, objects_shown, goal
    )
    return env, env.default_params


def _numbers(text: str) -> tuple[int, ...]:
    ranges = re.fullmatch(r"\d{1,2}(-\d{1,2})?(,\d{1,2}(-\d{1,2})?)*", text.replace(" ", ""))
    if ranges is None:
        raise BadValue(f"numbers is {text!r}; expected numbers of levels and ranges, such as 1-11,19", "numbers", text)
    ends = [[int(end) for end in part.split("-")] for part in ranges[0].split(",")]
    for first, *rest in ends:
        if rest and rest[0] < first:
            raise BadValue(
                f"numbers is {text!r}, whose range {first}-{rest[0]} is empty; write the smaller end first",
                "numbers",
                text,
            )
    return tuple(number for pair in ends for number in range(pair[0], pair[-1] + 1))


TAGS: dict[str, Callable[..., tuple[BabyAI, BabyAIParams]]] = {
    "BabyAI": make_babyai,
    **{f"BabyAI-{name}": partial(make_babyai, numbers=(number,)) for number, name in NAMES.items()},
}
"""The eighteen levels of AgentGym-RL, and each of the forty."""
