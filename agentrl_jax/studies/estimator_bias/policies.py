"""Policies of the enumerable task: a table and a network with one hidden layer; and drifted behavior policies.

Parameters are flat vectors.
"""

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from agentrl_jax.studies.estimator_bias.task import CONTEXTS, STATES, VOCABULARY

HIDDEN = 4

Drift = Literal["none", "small", "large"]
_MOVED = {"none": 0.0, "small": 0.2, "large": 0.8}


@dataclasses.dataclass(frozen=True)
class TinyPolicy:
    """A policy of the task; results show its name."""

    name: str
    logits: Callable[[Float[Array, " P"]], Float[Array, "CONTEXTS VOCABULARY"]]
    start: Float[np.ndarray, " P"]
    """The measured parameters: neither uniform nor near the end of training."""


def table() -> TinyPolicy:
    """One free logit per context and token."""
    start = np.random.default_rng(7).normal(0.0, 0.7, CONTEXTS * VOCABULARY)
    return TinyPolicy("table", lambda x: x.reshape(CONTEXTS, VOCABULARY), start)


def one_layer() -> TinyPolicy:
    """A hidden layer over the state and the earlier token, so that contexts share parameters."""
    features = np.zeros((CONTEXTS, STATES + 3))
    for context in range(CONTEXTS):
        features[context, context // 3] = features[context, STATES + context % 3] = 1.0
    first, second = (STATES + 3) * HIDDEN, HIDDEN * VOCABULARY

    def logits(x):
        hidden = jnp.tanh(features @ x[:first].reshape(-1, HIDDEN))
        return hidden @ x[first : first + second].reshape(HIDDEN, VOCABULARY) + x[first + second :]

    start = np.random.default_rng(11).normal(0.0, 0.8, first + second + VOCABULARY)
    return TinyPolicy("one layer", logits, start)


NAMED = {"table": table, "one_layer": one_layer}
"""The policies that can be chosen."""


def drifted(policy: TinyPolicy, drift: Drift, direction: int) -> Float[np.ndarray, " P"]:
    """Parameters of a behavior policy: those of `policy`, moved without regard to any reward.

    They move along a normal vector with the seed `direction`, in the mean as far as `drift` says.
    """
    return policy.start + _MOVED[drift] * np.random.default_rng(direction).normal(size=len(policy.start))
