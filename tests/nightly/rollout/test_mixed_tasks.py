"""Environments of the package in one batch of the engine."""

import jax
import numpy as np
import pytest
import toy_agent

from agentrl_jax.config import TaskConfig
from agentrl_jax.rollout import engine
from agentrl_jax.rollout.metrics import trajectory_metrics
from agentrl_jax.rollout.recording import empty_response
from agentrl_jax.rollout.returns import Penalties
from agentrl_jax.setup import build
from agentrl_jax.text.grammar import ParsedResponse

GROUPS = 16


def play(*names):
    """Plays GROUPS episodes per task; the key of an episode depends only on its index within its task."""
    config = toy_agent.CONFIG.replace(tasks=tuple(TaskConfig(env=name, groups=GROUPS) for name in names))
    batched_env = build.build_compiled_env(config, toy_agent.TOKENIZER)
    group = np.tile(np.arange(GROUPS), len(names))
    task = np.repeat(np.arange(len(names)), GROUPS)
    ids = build.episode_ids(group=group, member=0 * group, task=task, level=0 * group - 1)
    settings = build.rollout_settings(config, batched_env, len(group), 1.0)

    def run(params, key):
        return engine.rollout(
            params, toy_agent.MODEL.decoder, batched_env, toy_agent.engine_config(), key, ids, settings
        )[0]

    params = toy_agent.talkative_params(0)["policy"]
    return jax.tree.map(np.asarray, jax.jit(run)(params, jax.random.key(5)))


@pytest.fixture(scope="module")
def mixed():
    return play("Bandit", "SimpleSokoban", "FrozenLake")


@pytest.mark.parametrize(("task", "name"), enumerate(["Bandit", "SimpleSokoban"]))
def test_a_task_plays_as_if_alone(mixed, task, name):
    alone, rows = play(name), slice(task * GROUPS, (task + 1) * GROUPS)
    together = jax.tree.map(lambda x: x[rows], mixed)
    np.testing.assert_array_equal(alone.response.tokens, together.response.tokens)
    width = alone.observation.shape[2]
    np.testing.assert_array_equal(alone.observation, together.observation[:, :, :width])
    np.testing.assert_array_equal(alone.turn.reward, together.turn.reward)
    np.testing.assert_array_equal(alone.num_turns, together.num_turns)


def test_metrics_are_those_of_each_task(mixed):
    metrics = trajectory_metrics(mixed, ("Bandit", "SimpleSokoban", "FrozenLake"), 1, Penalties(-0.1))
    for task, name in enumerate(("Bandit", "SimpleSokoban", "FrozenLake")):
        rows = slice(task * GROUPS, (task + 1) * GROUPS)
        assert float(metrics[f"{name}/episodes"]) == GROUPS
        assert float(metrics[f"{name}/success"]) == pytest.approx(float(mixed.success[rows].mean()))
        assert float(metrics[f"{name}/raw_return"]) == pytest.approx(float(mixed.returns[rows].mean()), abs=1e-5)
    # Only FrozenLake and Sokoban have the actions that this agent names.
    assert float(metrics["Bandit/valid_turn"]) == 0
    assert min(float(metrics[f"{name}/valid_turn"]) for name in ("SimpleSokoban", "FrozenLake")) > 0.05


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
