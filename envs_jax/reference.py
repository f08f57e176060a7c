"""Reference solutions, which `envs_jax.checks` executes step by step, and bounds for policies that do not solve tasks.

Shapes: `N` levels, `T` actions, `S` situations of a level.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float64, Int8, Int16, Int32

Situation = Callable[[Any], Int32[Array, ""]]
"""The number of a state's situation, from 0 to S - 1. Pure; a function of a module, so that programs are reused."""


@dataclasses.dataclass(frozen=True)
class Floors:
    """Highest success of policies that do not solve the task, as an environment declares it.

    Attributes:
        constant: one action again and again, whichever it is.
        repeat_last: one random action, then the same again and again.
        random: uniform random actions.
        gap: how much the success of the reference exceeds that of `random`, at least.
        why: a reason for bounds that are high, in words.
    """

    constant: float = 0.5
    repeat_last: float = 0.5
    random: float = 0.5
    gap: float = 0.05
    why: str = ""


FLOORS = Floors()
"""Bounds of an environment that declares none."""


def any_situation(state: Any) -> Int32[Array, ""]:
    """Situation 0: the actions of a plan depend on time alone."""
    return jnp.int32(0)


class Reference(NamedTuple):
    """How each of N levels is solved.

    Attributes:
        actions: action ids by time and situation; after T actions those of the last row. Negative where none is known.
        lengths: number of actions of a shortest solution; -1 if none is known.
        complete: a level without a known solution has none.
        situation: the situation of a state.
        success: exact probability that the actions solve the level within T actions; None if they do in `lengths`
            actions for certain.
    """

    actions: Int16[np.ndarray, "N T S"]
    lengths: Int32[np.ndarray, " N"]
    complete: Bool[np.ndarray, " N"]
    situation: Situation = any_situation
    success: Float64[np.ndarray, " N"] | None = None


Solver = Callable[[Any, Any, Int8[np.ndarray, "N H W"], Any, int], Reference]
"""(env, params, levels, start states [N, ...], limit) -> the solutions; those of more than `limit` actions may be left
out. `levels` is i8[N, 0, 0] if the environment has none."""


def reference_of_plans(plans: list[Int32[np.ndarray, " L"] | None], complete: Bool[np.ndarray, " N"]) -> Reference:
    """Returns the reference that executes plans; None is a level without one."""
    lengths = np.array([-1 if plan is None else len(plan) for plan in plans], np.int32)
    actions = np.full((len(plans), max(1, int(lengths.max())), 1), -1, np.int16)
    for row, plan in zip(actions, plans):
        if plan is not None:
            row[: len(plan), 0] = plan
    return Reference(actions, lengths, complete)
