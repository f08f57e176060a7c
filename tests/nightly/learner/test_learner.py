import chex
import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
from made_up import BASE, CUT_OFF, GREEDY, GROUP_SIZE, GRPO, KEY, MODEL, NO_CRITIC, ONES, TRAJECTORY, fresh_state, learn

from agentrl_jax.config import decode
from agentrl_jax.config.advantages import Gae, Gigpo, Remax, Rloo
from agentrl_jax.config.algo import AdaptiveKl, FixedKl, UpdateRule
from agentrl_jax.config.mismatch import IcePop
from agentrl_jax.config.objectives import Gspo
from agentrl_jax.config.presets import NAMES as PRESETS
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.contexts import SINGLE_TURN
from agentrl_jax.setup.programs import Programs

SEPARATE = ActorCritic(decoder=made_up.SHAPE, critic="separate", shared_prefix_len=2)
ROWS, BUCKETS = {"grad_accum_steps": 4}, {"grad_accum_steps": 2, "length_buckets": 3}
BINS = ROWS | {"packing": True}
CONTINUED = {"context": SINGLE_TURN, "advantage": Gae(bootstrap_truncated=True), "kl": FixedKl(apply_to="reward")}


def same(one, other):
    made_up.assert_close(*(jax.tree.map(np.asarray, state.params) for state, _ in (one, other)))
    for name, value in one[1].items():
        np.testing.assert_allclose(other[1][name], value, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_makes_a_step(name):
    algo = decode({"algo": {"preset": name, "minibatches": 1}}).algo
    rule = {key: getattr(algo, key) for key in UpdateRule.model_fields if key != "mismatch"}
    model = MODEL if algo.advantage.has_critic else NO_CRITIC
    start = fresh_state(model, reference=algo.kl.kind != "none")
    after, metrics = learn(state=start, model=model, greedy=GREEDY if algo.advantage.kind == "remax" else None, **rule)
    assert int(after.gradient_steps) == 1
    assert metrics["update/trained_tokens"] > 0
    chex.assert_tree_all_finite((after.params, metrics))
    assert max(float(jnp.abs(x).max()) for x in jax.tree.leaves(jax.tree.map(jnp.subtract, after.params, start.params)))


@pytest.mark.parametrize(
    ("model", "rule", "parts"),
    [
        (NO_CRITIC, {"objective": Gspo(), "advantage": Rloo()}, ROWS),
        (NO_CRITIC, {"advantage": Gigpo(length_weighted=True), "mismatch": IcePop(reduction="mean")}, ROWS),
        (MODEL, {"aggregation": "seq_mean_token_mean"}, BUCKETS),
        (MODEL, {"minibatches": 2}, BUCKETS),
        (MODEL, {"minibatches": 2, "kl": FixedKl(estimator="full")}, BINS),
        (MODEL, {"minibatches": 2, "context": SINGLE_TURN}, BINS),
        (NO_CRITIC, {"minibatches": 2, **GRPO}, BINS),
        (SEPARATE, {"kl": FixedKl(estimator="k3"), "aggregation": "seq_mean_token_mean"}, BINS),
    ],
)
def test_parts_equal_the_whole(model, rule, parts):
    start, numbers = fresh_state(model, reference="kl" in rule), made_up.settings(kl__coef=0.5)
    same(*(learn(state=start, numbers=numbers, model=model, **rule, **more) for more in ({}, parts)))


@pytest.mark.parametrize(
    ("rule", "model", "trajectory", "devices"),
    [
        ({"group_size": GROUP_SIZE}, MODEL, TRAJECTORY, (2, 1)),
        ({"group_size": 2}, MODEL, TRAJECTORY, (8, 1)),
        (BINS, SEPARATE, TRAJECTORY, (2, 1)),
        (BINS, SEPARATE, TRAJECTORY, (4, 4)),
        # The greedy episodes of ReMax are replicated, and the coefficient is in the state.
        ({"advantage": Remax(), "kl": AdaptiveKl(estimator="k2")}, NO_CRITIC, TRAJECTORY, (2, 1)),
        # The microbatches of all devices have more rows than there are episodes.
        (CONTINUED | {"grad_accum_steps": 4, "group_size": 2}, MODEL, CUT_OFF, (8, 1)),
    ],
)
def test_devices_change_nothing(rule, model, trajectory, devices):
    """Half of the devices have long responses, half short ones, so means per device would be wrong."""
    greedy = GREEDY if model is NO_CRITIC else None
    numbers = made_up.settings(kl__coef=0.3, advantage__lam=0.7, kl__target=1e9, kl__horizon=64)
    start = fresh_state(model, reference="kl" in rule)
    one = learn(trajectory, start, numbers, model=model, greedy=greedy, **rule)
    programs = Programs(make_mesh(devices[0], fsdp=devices[1]))
    start = jax.device_put(fresh_state(model, reference="kl" in rule), programs.placement(start, model.decoder))
    program = programs.update(model, BASE.replace(**rule), made_up.PLAIN)
    several = program(start, trajectory, ONES, KEY, numbers, greedy)
    same(one, several)
    assert float(several[0].kl.coef) == pytest.approx(float(one[0].kl.coef))


def test_the_adaptive_coefficient_in_the_loss_follows_the_divergence():
    other = TRAJECTORY.replace(response=TRAJECTORY.response.replace(logprob=TRAJECTORY.response.logprob + 1.0))
    numbers = made_up.settings(kl__coef=0.5, kl__target=1e9, kl__horizon=2.0 * made_up.EPISODES)
    after, metrics = learn(other, fresh_state(reference=True), numbers, kl=AdaptiveKl(estimator="k3"))
    assert (metrics["actor/kl_coef"], float(after.kl.coef)) == (0.5, pytest.approx(0.9))
