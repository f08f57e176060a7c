"""Made-up episodes of two tasks, of which the environment tells a number, and rules with parts of the reward."""

import jax.numpy as jnp
import numpy as np
from made_up import CUT_OFF, EPISODES, GROUP_SIZE, GROUPS

from agentrl_jax.rollout.returns import NamedPart, RewardRule

DRAW = np.random.default_rng(11)
PLAYED = np.asarray(CUT_OFF.turn_mask)
TASK = np.repeat(np.arange(GROUPS) % 2, GROUP_SIZE)
LAST = np.arange(PLAYED.shape[1]) == np.asarray(CUT_OFF.num_turns)[:, None] - 1
SUCCESS = LAST & (DRAW.random(EPISODES) < 0.5)[:, None]
MOVED = np.where(PLAYED, DRAW.normal(size=PLAYED.shape), 0.0).astype(np.float32)
EPISODES_OF_TWO = CUT_OFF.replace(
    turn=CUT_OFF.turn.replace(success=jnp.asarray(SUCCESS), info={"moved": jnp.asarray(MOVED)}),
    ids=CUT_OFF.ids.replace(task=jnp.asarray(TASK, jnp.int32)),
    response=CUT_OFF.response.replace(ended=CUT_OFF.response.length == CUT_OFF.num_turns[:, None]),
)
LENGTH = np.asarray(EPISODES_OF_TWO.response.length)
FULL = EPISODES_OF_TWO.response.tokens.shape[-1]


def rule_with(weights=None, tasks=(), **sections):
    """Parts by name; `tasks` are those of all of them."""
    parts = tuple(NamedPart(name, section, tasks) for name, section in sections.items())
    weights = {f"{name}.weight": 1.0 for name in sections} | (weights or {})
    return RewardRule(0.0, numbers=weights, parts=parts)
