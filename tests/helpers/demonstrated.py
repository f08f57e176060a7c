"""Demonstrations on levels of two turns."""

import jax
import numpy as np

from agentrl_jax.config import Config, ImitationConfig, PromptConfig, TaskConfig
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.envs.level_splits import level_splits
from agentrl_jax.setup import build
from agentrl_jax.setup import demonstrations as setup_demonstrations
from agentrl_jax.text.tokenizer import load_small

LEVELS, TURNS, BUDGET = 32, 2, 3
PROMPT = PromptConfig(max_turns=TURNS, max_response_tokens=40, max_actions=BUDGET)


LAKE = "FrozenLake-deterministic"


def make_batched_env(*names, actions, levels=""):
    limits = {"max_turns": TURNS, "max_actions_per_turn": actions, "max_actions": BUDGET}
    tasks = tuple(TaskConfig(env=name, groups=1, levels=levels) for name in names)
    config = Config(tasks=tasks, prompt=PromptConfig(think=True, **limits))
    return build.build_compiled_env(config, load_small())


def demonstrated(batched_env, plans, context=FULL, levels=LEVELS, **options):
    imitation = ImitationConfig(plans=plans, levels=levels)
    inputs = batched_env, level_splits(batched_env), jax.random.key(3), PROMPT, imitation, context
    return jax.tree.map(np.asarray, setup_demonstrations.demonstrations(*inputs, **options))
