import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toy_agent
from prompt_scores import BASE, GROUP_SIZE, MODEL, NOW, measured, policy, samples

from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN
from agentrl_jax.rollout.engine import rollout

GROUPS = 6


@pytest.mark.parametrize("context", [FULL, SINGLE_TURN])
def test_a_response_has_the_score_with_which_it_was_sampled_also_on_a_mesh(context):
    engine = toy_agent.engine_config(group_size=GROUP_SIZE, context=context)
    program = jax.jit(lambda params, *of: rollout(params, MODEL.decoder, toy_agent.BATCHED_ENV, engine, *of)[0])
    settings = toy_agent.settings(GROUPS * GROUP_SIZE, temperature=jnp.full(GROUPS * GROUP_SIZE, 0.8))
    ids = toy_agent.mixed_ids(GROUPS, GROUP_SIZE)
    trajectory = program(policy(NOW), jax.random.key(7), ids, settings)
    config = dataclasses.replace(BASE, context=context)
    found = measured(trajectory, config)
    for name, (sample, _) in zip(("first_turn", "trajectory"), samples(trajectory, config)):
        drawn = np.sum(np.asarray(trajectory.response.logprob)[sample.episode, sample.turn], axis=-1)
        assert found[f"collapse/{name}_response_conditional_entropy"] == pytest.approx(-np.mean(drawn), abs=2e-4)
    assert found.keys() - measured(trajectory, config, reference=None).keys() == {"actor/kl"}
    spread = measured(trajectory, config, devices=8, fsdp=2, tensor=2)
    assert spread == pytest.approx(found, rel=1e-4, abs=2e-4, nan_ok=True)
