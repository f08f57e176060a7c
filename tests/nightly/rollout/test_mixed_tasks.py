"""Environments of the package in one batch of the engine."""

import jax
import numpy as np
import toy_agent

from agentrl_jax.config import TaskConfig
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.setup import build
from agentrl_jax.text.grammar import ParsedResponse


def test_an_environment_that_sees_all_of_its_rows_can_be_mixed():
    """The planner of BabyAI runs on the rows of a batch, see `envs_jax.batching`; tracing alone would fail."""
    tasks = tuple(TaskConfig(env=name, groups=1) for name in ("BabyAI-GoToRedBallNoDists", "FrozenLake"))
    batched_env = build.build_compiled_env(toy_agent.CONFIG.replace(tasks=tasks), toy_agent.TOKENIZER)
    rows = np.arange(4, dtype=np.int32)
    ids = build.episode_ids(group=rows, member=0 * rows, task=rows // 2, level=0 * rows - 1)
    settings = build.rollout_settings(toy_agent.CONFIG, batched_env, len(rows), 1.0)
    ones = np.ones(len(rows), np.int32)
    parsed = ParsedResponse(actions=0 * rows[:, None], num_valid=ones, num_parsed=ones, format_ok=ones > 0)

    def play(key):
        state, _ = batched_env.reset(key, settings, ids)
        return batched_env.step(settings, state, empty_response(4, 8), parsed, ones > 0, new_context=False)

    state, result, _ = jax.eval_shape(play, jax.random.key(0))
    assert (len(state.envs), result.reward.shape) == (2, (4,))
