"""Baselines for an agent's success: random, null and optimal play within the agent's own budget.

Shapes: `N` levels.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from agentrl_jax.config import PromptConfig
from envs_jax.budget import Baselines, Budget
from envs_jax.environment import TextEnvironment


def episode_budget(prompt: PromptConfig) -> Budget:
    """The limits of an episode of a compiled environment under a prompt configuration."""
    return Budget(prompt.max_actions, prompt.max_turns, prompt.max_actions_per_turn)


def null_success(env: TextEnvironment, params: Any, levels: np.ndarray) -> np.ndarray:
    """Success f64[N] of an agent whose responses can never be parsed, which is that of the initial state.

    Args:
        env: the environment.
        params: its parameters.
        levels: i8[N, H, W]; i8[N, 0, 0] if the environment has none: then sampled initial states.
    """

    def given(level):
        return env.success(env.reset_to_level(level, params)[1], params)

    def drawn(key):
        return env.success(env.reset_env(key, params)[1], params)

    if levels.size:
        return np.asarray(jax.jit(jax.vmap(given))(levels), np.float64)
    return np.asarray(jax.jit(jax.vmap(drawn))(jax.random.split(jax.random.key(0), len(levels))), np.float64)


def pool(parts: Sequence[Baselines | None]) -> Baselines | None:
    """Concatenates the baselines of several tasks; None if those of a task are unknown."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    null = [part.null for part in known if part.null is not None]
    return Baselines(
        np.concatenate([part.random for part in known]),
        np.concatenate([part.optimal for part in known]),
        ", ".join(sorted({part.optimal_is for part in known})),
        np.concatenate(null) if len(null) == len(known) else None,
    )


def rows(lines: Baselines, wanted: np.ndarray) -> Baselines:
    """The baselines of the levels selected by bool[N]."""
    null = None if lines.null is None else lines.null[wanted]
    return Baselines(lines.random[wanted], lines.optimal[wanted], lines.optimal_is, null)
