"""Responses scored under each other's prompts: those of the engine, on a mesh, and in a run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from prompt_scores import BASE, GROUP_SIZE, MODEL, PARAMS, check_scores, measured, samples

from agentrl_jax.rollout.engine import rollout

GROUPS = 6


@pytest.fixture(scope="module", params=["full", "single_turn"])
def played(request):
    engine = toy_agent.engine_config(group_size=GROUP_SIZE, context=request.param)
    program = jax.jit(lambda params, *of: rollout(params, MODEL.decoder, toy_agent.BATCHED_ENV, engine, *of)[0])
    settings = toy_agent.settings(GROUPS * GROUP_SIZE, temperature=jnp.full(GROUPS * GROUP_SIZE, 0.8))
    ids = toy_agent.mixed_ids(GROUPS, GROUP_SIZE)
    return program(PARAMS["policy"], jax.random.key(7), ids, settings), request.param


def test_scores_are_those_of_a_forward_pass_and_of_the_engine(played):
    """Under its own prompt, a response has the log-probability with which it was sampled."""
    trajectory, context = played
    config = dataclasses.replace(BASE, context=context)
    check_scores(trajectory, config)
    found = measured(trajectory, config)
    for name, (sample, _) in zip(("first_turn", "trajectory"), samples(trajectory, config)):
        drawn = np.sum(np.asarray(trajectory.response.logprob)[sample.episode, sample.turn], axis=-1)
        assert found[f"collapse/{name}_response_conditional_entropy"] == pytest.approx(-np.mean(drawn), abs=2e-4)


def test_a_mesh_measures_the_same(played):
    trajectory, context = played
    config = dataclasses.replace(BASE, context=context)
    one, spread = measured(trajectory, config), measured(trajectory, config, devices=8, fsdp=2, tensor=2)
    assert one.keys() == spread.keys()
    for name, value in one.items():
        assert spread[name] == pytest.approx(value, rel=1e-4, abs=2e-4), name
