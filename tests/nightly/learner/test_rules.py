"""Updates of many configurations on made-up trajectories: presets, microbatches, meshes."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_up import (
    BASE,
    EPISODES,
    GROUP_SIZE,
    KEY,
    MODEL,
    ONES,
    PLAIN,
    SHAPE,
    TRAJECTORY,
    assert_close,
    fresh_state,
    program,
    settings,
)

from agentrl_jax.algos import gigpo as gigpo
from agentrl_jax.config import decode
from agentrl_jax.config.advantages import Gae, Gigpo, Remax, Rloo
from agentrl_jax.config.algo import AdaptiveKl, FixedKl, Gspo, IcePop, UpdateRule
from agentrl_jax.config.presets import NAMES as PRESETS
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.setup.programs import Programs

NO_CRITIC = ActorCritic(decoder=SHAPE, critic="none")
GREEDY = jax.tree.map(lambda x: x[1::GROUP_SIZE], TRAJECTORY)

# Two of three episodes were truncated after an observation without a response.
FINAL_LENGTH = np.arange(EPISODES) % 3
FINAL = np.random.default_rng(7).integers(0, 19, (EPISODES, TRAJECTORY.observation.shape[-1]))
CUT_OFF = TRAJECTORY.replace(
    truncation=jnp.asarray(FINAL_LENGTH > 0, jnp.int32),
    final_observation=jnp.asarray(FINAL, jnp.int32),
    final_observation_length=jnp.asarray(FINAL_LENGTH, jnp.int32),
)


def of_preset(name):
    algo = decode({"algo": {"preset": name, "minibatches": 1}}).algo
    return BASE.replace(**{key: getattr(algo, key) for key in UpdateRule.model_fields if key != "mismatch"})


def model_of(config):
    return MODEL if config.advantage.has_critic else NO_CRITIC


def size(tree):
    return max(float(jnp.abs(x).max()) for x in jax.tree.leaves(tree))


def of(config):
    greedy = GREEDY if config.advantage.kind == "remax" else None
    model = model_of(config)
    start = fresh_state(model, reference=config.kl.kind != "none")
    after, metrics = program(model, PLAIN, config)(start, TRAJECTORY, ONES, KEY, settings(), greedy)
    return after, metrics, jax.tree.map(jnp.subtract, after.params, start.params)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_step(name):
    after, metrics, step = of(of_preset(name))
    assert int(after.gradient_steps) == 1
    assert metrics["update/trained_tokens"] > 0
    chex.assert_tree_all_finite((after.params, metrics))
    assert size(step) > 1e-6


@pytest.mark.parametrize(
    "changes",
    [
        {"objective": Gspo(), "advantage": Rloo()},
        {"advantage": Gigpo(length_weighted=True), "mismatch": IcePop(level="sequence")},
    ],
)
def test_parts_of_a_minibatch_change_nothing(changes):
    steps = [of(BASE.replace(**changes, grad_accum_steps=parts))[2] for parts in (1, 4)]
    assert_close(*steps, 1e-6)


def test_several_devices_make_the_same_step():
    """ReMax, whose greedy episodes are replicated to every device, with a coefficient in the state."""
    config = BASE.replace(advantage=Remax(), kl=AdaptiveKl(estimator="k2"))
    made = []
    for devices in (1, 2):
        programs = Programs(make_mesh(devices))
        state = jax.tree.map(jnp.copy, fresh_state(NO_CRITIC, reference=True))
        program = programs.update(NO_CRITIC, config, PLAIN)
        made.append(
            program(state, TRAJECTORY, ONES, KEY, settings(kl_coef=0.5, kl_target=1e9, kl_horizon=64.0), GREEDY)
        )
    (one, known), (two, metrics) = made
    assert_close(*(jax.tree.map(np.asarray, state.params) for state in (one, two)), 1e-5)
    assert float(two.kl.coef) == pytest.approx(float(one.kl.coef))
    assert float(two.kl.coef) < 1.0
    np.testing.assert_allclose(metrics["actor/kl"], known["actor/kl"], atol=1e-9)


def test_several_devices_agree_on_rows_of_turns_and_on_what_was_cut_off():
    """With more rows in the parts of all devices than episodes, so that the last observation is repeated."""
    config = BASE.replace(
        context="single_turn",
        advantage=Gae(bootstrap_truncated=True),
        kl=FixedKl(apply_to="reward"),
        grad_accum_steps=4,
        group_size=2,
    )
    numbers, made = settings(kl_coef=0.3, lam=0.7), []
    for devices in (1, 8):
        state = jax.tree.map(jnp.copy, fresh_state(reference=True))
        program = Programs(make_mesh(devices)).update(MODEL, config, PLAIN)
        made.append(jax.tree.map(np.asarray, program(state, CUT_OFF, ONES, KEY, numbers)))
    (one, known), (spread, metrics) = made
    assert_close(one.params, spread.params, 1e-5)
    for name, value in known.items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-5, atol=2e-6, err_msg=name)
