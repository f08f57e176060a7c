"""`algo.mismatch` replay on several devices and with bins; its gradient, and what one wrong bit does."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
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


REFILLED = {"slots": 4, "prefill_threshold": 0.5}


@pytest.fixture(scope="module")
def iteration():
    return Iteration(1, {})


@pytest.mark.parametrize(
    ("devices", "fsdp", "engine"),
    [(1, 1, {}), (2, 1, REFILLED), (4, 1, {"context": "single_turn", **REFILLED}), (4, 2, REFILLED)],
)
def test_nothing_has_moved(devices, fsdp, engine):
    """Rollout and learner distribute rows differently, minibatches are shuffled, and shards are all-gathered."""
    several = Iteration(devices, engine, fsdp=fsdp, epochs=1, minibatches=2)
    _, metrics = several.learn("replay", lr=0.0, critic_lr=0.0, kl_coef=0.3)
    assert_exact(metrics)
    assert "actor/kl" in metrics


def test_the_gradient_is_that_of_the_parallel_pass(iteration):
    moved = iteration.state.replace(
        params=iteration.state.params | {"policy": jax.tree.map(lambda x: 1.02 * x, iteration.state.params["policy"])}
    )
    numbers = {"lr": 0.05, "critic_lr": 0.05, "max_grad_norm": 1e9, "kl_coef": 0.3}
    strict, parallel = (iteration.learn(mode, state=moved, **numbers) for mode in ("replay", "rollout"))
    steps = [jax.tree.map(jnp.subtract, after.params, moved.params) for after, _ in (strict, parallel)]
    made_up.assert_close(*steps, 1e-3)
    for name in ("actor/kl", "actor/ratio_mean", "actor/ppo_kl", "rollout/ref_logprob_mean", "loss"):
        np.testing.assert_allclose(strict[1][name], parallel[1][name], rtol=1e-3, atol=1e-5, err_msg=name)
    assert strict[1]["actor/kl"] > 1e-4
    assert strict[1]["actor/ratio_mean"] != 1.0


def test_one_wrong_bit_is_seen(iteration):
    trajectory = iteration.trajectory
    off = jnp.where(trajectory.response_mask, jnp.nextafter(trajectory.response.logprob, -jnp.inf), 0.0)
    one_turn = jnp.arange(trajectory.response_mask.shape[1])[:, None] == 0
    response = trajectory.response.replace(logprob=jnp.where(one_turn, off, trajectory.response.logprob))
    _, metrics = iteration.learn("replay", trajectory=trajectory.replace(response=response), lr=0.0, critic_lr=0.0)
    assert 0 < metrics["rollout/logprob_bit_equal"] < 1
    assert 0 < metrics["rollout/logprob_gap_mean"] < metrics["rollout/logprob_gap_max"] < 1e-6


def test_the_gap_of_the_parallel_pass(iteration):
    trajectory = iteration.trajectory
    _, metrics = iteration.learn("learner")
    assert 0 < metrics["rollout/logprob_gap_mean"] < metrics["rollout/logprob_gap_max"] < 1e-4
    assert metrics["rollout/logprob_bit_equal"] < 1
    assert "rollout/parallel_gap_max" not in metrics
    shifted = trajectory.response.replace(logprob=trajectory.response.logprob.at[:, 0, 0].add(-0.75))
    _, metrics = iteration.learn("learner", trajectory=trajectory.replace(response=shifted))
    assert metrics["rollout/logprob_gap_max"] == pytest.approx(0.75, abs=1e-4)


def test_packed_rows_are_replayed_on_several_devices():
    rule = {"minibatches": 1, "epochs": 1, "grad_accum_steps": 2}
    plain, packed = (Iteration(2, {}, packing=packing, **rule) for packing in (False, True))
    after, metrics = plain.learn("replay")
    of_bins, in_bins = packed.learn("replay", trajectory=plain.trajectory)
    assert in_bins["rollout/logprob_bit_equal"] == metrics["rollout/logprob_bit_equal"] == 1
    for one, other in zip(*map(jax.tree.leaves, (after.params, of_bins.params))):
        np.testing.assert_allclose(other, one, atol=1e-5)
    assert metrics["actor/grad_norm"] == pytest.approx(in_bins["actor/grad_norm"], rel=1e-4)
    assert any((x != np.asarray(y)).any() for x, y in zip(*map(jax.tree.leaves, (after.params, plain.state.params))))
