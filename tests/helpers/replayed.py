"""Rollout and update of the toy agent, with `algo.mismatch` replay and without."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import toy_agent
import xla_settings
from toy_agent import GROUP_SIZE

from agentrl_jax.config.algo import FixedKl, NoCorrection, Replay
from agentrl_jax.learner import state as states
from agentrl_jax.models import actor_critic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.setup import build
from agentrl_jax.setup.programs import Programs

GROUPS = 8
EPISODES = GROUPS * GROUP_SIZE
IDS = toy_agent.mixed_ids(GROUPS, GROUP_SIZE)
TEMPERATURE = jnp.asarray(np.where(np.arange(EPISODES) % 3 == 0, 0.7, 1.0), jnp.float32)
KEY = jax.random.key(7)
MODEL = dataclasses.replace(toy_agent.MODEL, critic="none")
RULE = build.learner_config(toy_agent.CONFIG).replace(
    **made_up.GRPO, task_names=("short", "long"), kl=FixedKl(estimator="k3"), epochs=2, minibatches=1
)
MISMATCH = {"replay": Replay(), "rollout": NoCorrection(ratio_from="rollout"), "learner": NoCorrection()}


def settings(**changes):
    values = build.update_settings(toy_agent.CONFIG, 1.0)
    return values.replace(**{name: jnp.float32(value) for name, value in changes.items()})


class Iteration:
    """Rollout and update of the toy agent, with the machine code of both not optimized."""

    def __init__(self, devices, engine, *, fsdp=1, **rule):
        self.programs = Programs(make_mesh(devices, fsdp=fsdp))
        self.engine = toy_agent.engine_config(group_size=GROUP_SIZE, **engine)
        self.rule = RULE.replace(context=self.engine.context, **rule)
        self.compiled = {}
        params = actor_critic.init_params(jax.random.key(0), MODEL)
        params |= {"policy": toy_agent.talkative_params(5)["policy"]}
        state = states.init_state(jax.random.key(0), MODEL, made_up.PLAIN, reference=True)
        state = states.with_reference(state.replace(params=params))
        self.state = jax.device_put(state, self.programs.placement(state, MODEL.decoder))

    @functools.cached_property
    def trajectory(self):
        program = self.programs.rollout("rollout", MODEL, toy_agent.BATCHED_ENV, self.engine)
        arguments = self.state.params, KEY, IDS, toy_agent.settings(EPISODES, temperature=TEMPERATURE)
        return program.lower(*arguments).compile(xla_settings.SAME_BITS)(*arguments)[0]

    def learn(self, logprobs, *, state=None, trajectory=None, **numbers):
        """Returns state and metrics after the update; each program is compiled once."""
        state = jax.tree.map(jnp.copy, self.state if state is None else state)  # the program donates it
        trajectory = self.trajectory if trajectory is None else trajectory
        arguments = state, trajectory, TEMPERATURE, KEY, settings(**numbers)
        if logprobs not in self.compiled:
            rule = self.rule.replace(mismatch=MISMATCH[logprobs])
            program = self.programs.update(MODEL, rule, made_up.PLAIN, self.engine)
            self.compiled[logprobs] = program.lower(*arguments).compile(xla_settings.SAME_BITS)
        return jax.tree.map(np.asarray, self.compiled[logprobs](*arguments))


def assert_exact(metrics):
    """Ratios, divergences and log-probabilities equal those of the rollout bit for bit."""
    assert metrics["update/trained_tokens"] > 50
    assert metrics["actor/ratio_mean"] == 1.0
    for name in ("actor/kl", "actor/ppo_kl", "rollout/logprob_gap_mean", "rollout/logprob_gap_max"):
        assert metrics.get(name, 0.0) == 0.0, name
    assert metrics["rollout/logprob_bit_equal"] == 1.0
