"""Rollouts of the toy agent that reads its last two turns."""

import jax
import toy_agent
from toy_agent import GROUP_SIZE
from toy_rollouts import KEY

from agentrl_jax.rollout import engine
from agentrl_jax.rollout.contexts import Window

EPISODES = 64
ENV = toy_agent.make_batched_env(legends=((), (("0", "the ground"), ("9", "the top"))))
"""Tasks with prompts of different lengths, because a context begins after its prompt."""
REFILLED = {"slots": 16, "prefill_threshold": 0.4, "prefill_rows": 3, "chunk": 5}
PAIRS = toy_agent.engine_config(group_size=GROUP_SIZE, context=Window(2), **REFILLED)


def played(policy, config):
    ids, settings = toy_agent.mixed_ids(EPISODES // GROUP_SIZE, GROUP_SIZE), toy_agent.settings(EPISODES)
    play = jax.jit(lambda *of: engine.rollout(of[0], toy_agent.MODEL.decoder, ENV, config, KEY, *of[1:])[0])
    return play(policy, ids, settings)
