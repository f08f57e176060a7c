"""Rollout and update together improve an agent."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent

from agentrl_jax.config import OptimConfig, TaskConfig, decode
from agentrl_jax.learner import state
from agentrl_jax.learner import update as learner
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout import engine
from agentrl_jax.rollout.envs.batched_env import CompiledEnv
from agentrl_jax.setup import build

ITERATIONS = 20
CONFIG = toy_agent.CONFIG.replace(
    tasks=(TaskConfig(env="Climb", groups=16),), optim=OptimConfig(lr=0.01, critic_lr=0.01)
)


class Climb(toy_agent.Ladder):
    """The ladder with reward 1 for a rung up and -1 for a rung down."""

    def step_env(self, key, state, action, params):
        height, after, _, terminated, info = super().step_env(key, state, action, params)
        return height, after, (after.height - state.height).astype(jnp.float32), terminated, info


@pytest.fixture(scope="module")
def play():
    config = build.engine_config(toy_agent.CONFIG, toy_agent.TOKENIZER, group_size=toy_agent.GROUP_SIZE, slots=0)
    ids = build.training_ids(CONFIG)
    env = Climb(100)
    task = build.make_task("Climb", env, env.default_params, toy_agent.CONFIG.prompt, toy_agent.TOKENIZER)
    batched_env = CompiledEnv(tasks=(task,))
    settings = build.rollout_settings(CONFIG, batched_env, len(ids.group), 1.0)
    run = functools.partial(engine.rollout, model=toy_agent.MODEL.decoder, batched_env=batched_env, config=config)
    return jax.jit(lambda params, key: run(params, key=key, ids=ids, settings=settings)[0])


@pytest.mark.parametrize("preset", ["starpo_s", "starpo_grpo"])
def test_returns_rise(play, preset):
    """Climbing only takes saying Up; an agent with random parameters must learn that."""
    algo = decode({"algo": {"preset": preset, "minibatches": 1, "kl": "none"}}).algo
    config = CONFIG.replace(algo=algo)
    model, tx = build.build_model(config, toy_agent.TOKENIZER), build.build_optimizer(config)
    agent = state.init_state(jax.random.key(1), model, tx, reference=False)
    policy = toy_agent.talkative_params(0)["policy"]
    agent = agent.replace(params=agent.params | {"policy": policy}, opt_state=state.init_optimizer(tx, agent.params))
    step = jax.jit(
        functools.partial(learner.update, model=model, config=build.learner_config(config), tx=tx, shards=Shards())
    )
    temperature = jnp.ones(len(build.training_ids(config).group))
    returns = []
    for i in range(ITERATIONS):
        trajectory = play(agent.params["policy"], jax.random.key(i))
        returns.append(float(np.mean(trajectory.returns)))
        agent, metrics = step(agent, trajectory, temperature, jax.random.key(i), build.update_settings(config, 1.0))
        assert float(metrics["update/skipped"]) == 0
    assert np.mean(returns[-5:]) > np.mean(returns[:5]) + 0.5
