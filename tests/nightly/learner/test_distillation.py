"""What is not changed by how the rows of a step with a teacher are divided, and what of the policy is taught."""

import dataclasses

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
from made_up import GRPO, HINTS, KEY, NO_CRITIC, ONES, TRAJECTORY, assert_close, settings
from taught import RULES, check_equal_contexts, started, taught

from agentrl_jax.config.distillation import SelfDistillation
from agentrl_jax.models.lora import LoraConfig
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.setup.programs import Programs


@pytest.mark.parametrize("name", ["sampled", "full"])
def test_microbatches_lengths_and_devices_change_nothing(name):
    rule = RULES[name]
    numbers = settings(distillation__rl_coef=0.5, lr=1.0)
    _, metrics, whole = taught(rule, numbers)
    _, parts, split = taught(rule, numbers, grad_accum_steps=4, length_buckets=3)
    assert_close(whole, split, 1e-3)
    config = made_up.BASE.replace(distillation=rule, **GRPO)
    program = Programs(make_mesh(4)).update(NO_CRITIC, config, made_up.PLAIN)
    spread, of_four = program(started(rule), TRAJECTORY, ONES, KEY, numbers, None, HINTS)
    assert_close(whole, jax.tree.map(jnp.subtract, spread.params, started(rule).params), 1e-3)
    for found in (parts, of_four):
        assert found["distill/kl"] == pytest.approx(float(metrics["distill/kl"]), rel=1e-4)


def test_the_adapter_of_a_frozen_decoder_is_taught():
    model = dataclasses.replace(NO_CRITIC, lora=LoraConfig(rank=2, alpha=4.0, targets=("query", "up")))
    rule = SelfDistillation(loss="full", teacher="ema")
    state, metrics, moved = taught(rule, model=model)
    assert float(metrics["distill/kl"]) > 0
    assert all(np.any(x) for x in jax.tree.leaves(moved["policy"]))
    assert jax.tree.structure(state.teacher) == jax.tree.structure(state.params["policy"])


def test_equal_distributions_teach_exactly_nothing():
    check_equal_contexts("full")
