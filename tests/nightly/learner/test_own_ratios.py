"""Ratios to the learner's log-probabilities: nothing is clipped before the first step."""

import dataclasses

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
import toy_agent
from toy_agent import GROUP_SIZE

from agentrl_jax.config.advantages import RewardToGo
from agentrl_jax.config.algo import FixedKl, Gspo, NoCorrection, NoFilter, Ppo
from agentrl_jax.learner import state as states
from agentrl_jax.models import actor_critic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.setup import build
from agentrl_jax.setup.programs import Programs

GROUPS = 8
KEY = jax.random.key(7)
MODEL = dataclasses.replace(
    toy_agent.MODEL, critic="none", decoder=dataclasses.replace(toy_agent.MODEL.decoder, dtype="bfloat16")
)
RULE = build.learner_config(toy_agent.CONFIG).replace(
    **made_up.GRPO,
    task_names=("short", "long"),
    filter=NoFilter(),
    objective=Gspo(),
    aggregation="seq_mean_token_mean",
)
ROLLOUT = NoCorrection(ratio_from="rollout")
NUMBERS = build.update_settings(toy_agent.CONFIG, 1.0).replace(
    lr=jnp.float32(0.0), clip_low=jnp.float32(3e-4), clip_high=jnp.float32(4e-4)
)
"""The published clip range of GSPO, and a learning rate of zero."""


@pytest.fixture(scope="module")
def learn():
    """Function from changes of the configuration to metrics of an update in bfloat16 with learning rate 0."""
    programs = Programs(make_mesh(1))
    engine = toy_agent.engine_config(group_size=GROUP_SIZE)
    params = actor_critic.init_params(jax.random.key(0), MODEL) | {"policy": toy_agent.talkative_params(5)["policy"]}
    state = states.init_state(jax.random.key(0), MODEL, made_up.PLAIN, reference=True)
    state = states.with_reference(state.replace(params=params))
    episodes = GROUPS * GROUP_SIZE
    rollout = programs.rollout("rollout", MODEL, toy_agent.BATCHED_ENV, engine)
    ids = toy_agent.mixed_ids(GROUPS, GROUP_SIZE)
    trajectory, _ = rollout(state.params, KEY, ids, toy_agent.settings(episodes))

    def run(**changes):
        program = programs.update(MODEL, RULE.replace(**changes), made_up.PLAIN, engine)
        _, metrics = program(jax.tree.map(jnp.copy, state), trajectory, jnp.ones(episodes), KEY, NUMBERS)
        return jax.tree.map(np.asarray, metrics)

    return run


def test_the_rollout_s_log_probabilities_are_clipped_before_anything_has_moved(learn):
    """The reason for this option: bfloat16 rounding alone exceeds the clip range of GSPO."""
    metrics = learn(mismatch=ROLLOUT)
    assert metrics["rollout/logprob_gap_mean"] > 1e-4
    assert metrics["actor/clip_fraction"] > 0.1


@pytest.mark.parametrize(
    "changes",
    [{}, {"minibatches": 2}, {"epochs": 2, "grad_accum_steps": 2, "length_buckets": 2}],
    ids=["one", "two", "parts"],
)
def test_nothing_is_clipped_before_anything_has_moved(learn, changes):
    metrics = learn(mismatch=NoCorrection(), **changes)
    assert metrics["rollout/logprob_gap_mean"] > 1e-4  # the two do differ
    assert metrics["actor/clip_fraction"] == 0.0
    assert metrics["actor/ratio_mean"] == pytest.approx(1.0, abs=1e-6)


def test_the_penalty_in_the_reward_starts_from_the_learner_too(learn):
    """The policy is its own reference; with the rollout's log-probabilities, k1 would be their difference."""
    changes = {
        "kl": FixedKl(apply_to="reward"),
        "advantage": RewardToGo(whiten=False),
        "objective": Ppo(dual_clip=None),
    }
    assert learn(mismatch=NoCorrection(), **changes)["actor/reward_kl_penalty"] == pytest.approx(0.0, abs=1e-6)
    assert abs(learn(mismatch=ROLLOUT, **changes)["actor/reward_kl_penalty"]) > 1e-6
