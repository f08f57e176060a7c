"""The update: what it must not depend on, and what it must do; few configurations, because compiling one takes long."""

import chex
import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
from made_up import (
    BASE,
    CUT_OFF,
    EPISODES,
    GREEDY,
    GROUP_SIZE,
    GRPO,
    KEY,
    MODEL,
    NO_CRITIC,
    ONES,
    TRAJECTORY,
    assert_close,
    fresh_state,
    learn,
    settings,
)

from agentrl_jax.config import decode
from agentrl_jax.config.advantages import Gae, Gigpo, Remax, Rloo
from agentrl_jax.config.algo import AdaptiveKl, FixedKl, UpdateRule
from agentrl_jax.config.mismatch import IcePop
from agentrl_jax.config.objectives import Gspo
from agentrl_jax.config.presets import NAMES as PRESETS
from agentrl_jax.errors import BadValue
from agentrl_jax.models import actor_critic
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.rollout.contexts import SINGLE_TURN
from agentrl_jax.setup.programs import Programs


def step_of(state, model=MODEL):
    return jax.tree.map(jnp.subtract, state.params, fresh_state(model).params)


ROWS = {"context": SINGLE_TURN, "aggregation": "seq_mean_token_mean", "minibatches": 2, "epochs": 2}
"""Rows of single turns, some of them empty, and four gradient steps, whose minibatches the key orders."""


def same(one, other):
    assert_close(step_of(one[0]), step_of(other[0]))
    for name, value in one[1].items():
        np.testing.assert_allclose(other[1][name], value, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.fixture(scope="module")
def of_rows():
    return learn(**ROWS)


def test_groups_that_devices_would_share_are_refused():
    update = Programs(make_mesh(8)).update(MODEL, BASE, made_up.PLAIN)
    with pytest.raises(BadValue) as caught:
        update(fresh_state(), TRAJECTORY, ONES, made_up.KEY, settings())
    assert (caught.value.key, caught.value.value) == ("group_size", 4)


def test_bins_are_fewer_microbatches_and_change_nothing(of_rows, monkeypatch):
    computed, score_tokens = [], actor_critic.score_tokens

    def counted(*arguments, **options):
        jax.debug.callback(lambda: computed.append(1))
        return score_tokens(*arguments, **options)

    monkeypatch.setattr(actor_critic, "score_tokens", counted)
    same(of_rows, learn(**ROWS, grad_accum_steps=4, packing=True))
    jax.effects_barrier()
    assert 4 <= len(computed) < 4 * 4


def test_what_was_not_sampled_is_not_read_as_such():
    t = TRAJECTORY
    response = t.response.replace(
        tokens=jnp.where(t.response_mask, t.response.tokens, 17),
        logprob=jnp.where(t.response_mask, t.response.logprob, -50.0),
    )
    unseen = jnp.arange(made_up.SEEN) >= t.observation_length[..., None]
    dirty, _ = learn(t.replace(response=response, observation=jnp.where(unseen, 11, t.observation)))
    assert_close(step_of(learn()[0]), step_of(dirty))


@pytest.mark.nightly
def test_the_longest_row_of_skipped_steps_is_reported():
    reward = TRAJECTORY.turn.reward.at[: made_up.GROUP_SIZE, 0].set(jnp.nan)  # one group of four
    broken = TRAJECTORY.replace(turn=TRAJECTORY.turn.replace(reward=reward))
    longest = set()
    for seed in range(4):
        key = jax.random.key(seed)
        state, metrics = learn(broken, fresh_state(NO_CRITIC), model=NO_CRITIC, key=key, minibatches=8, **GRPO)
        bad = "".join("x" if x else " " for x in ~np.isfinite(metrics["grad_norm"]))
        assert metrics["update/skipped"] == bad.count("x") > 0
        assert metrics["update/skipped_in_a_row"] == max(map(len, bad.split()))
        assert int(state.gradient_steps) == bad.count(" ")
        longest.add(int(metrics["update/skipped_in_a_row"]) - int(state.bad_updates))
    assert max(longest) > 0


@pytest.mark.parametrize(("target", "factor"), [(1e9, 0.9), (1e-9, 1.1)])
def test_the_adaptive_coefficient_follows_the_divergence(target, factor):
    """clip(error, -0.2, 0.2) * episodes / horizon per step; the coefficient is in the state and so in checkpoints."""
    other = TRAJECTORY.replace(response=TRAJECTORY.response.replace(logprob=TRAJECTORY.response.logprob + 1.0))
    numbers = settings(kl__coef=0.5, kl__target=target, kl__horizon=2.0 * EPISODES)
    start, kind = fresh_state(reference=True), AdaptiveKl(apply_to="reward", estimator="k1")
    after, metrics = learn(other, start, numbers, kl=kind)
    assert metrics["actor/kl_coef"] == 0.5
    assert float(after.kl.coef) == pytest.approx(factor)
    half, metrics = learn(other, start.replace(kl=start.kl.replace(coef=jnp.float32(0.5))), numbers, kl=kind)
    assert metrics["actor/kl_coef"] == 0.25
    assert float(half.kl.coef) == pytest.approx(0.5 * factor)


def test_the_update_calls_nothing_on_the_host():
    program = made_up.program(MODEL, made_up.PLAIN, BASE)
    text = program.lower(fresh_state(), TRAJECTORY, ONES, made_up.KEY, settings()).as_text()
    for forbidden in ("callback", "infeed", "outfeed", "stablehlo.send", "stablehlo.recv", "host_transfer"):
        assert forbidden not in text, forbidden


def speaking(episodes):
    length = jnp.where(jnp.arange(EPISODES)[:, None] < episodes, TRAJECTORY.response.length, 0)
    return TRAJECTORY.replace(response=TRAJECTORY.response.replace(length=length))


def test_fewer_rows_than_minibatches_are_as_many_steps():
    few = {"model": NO_CRITIC, "minibatches": 8, **GRPO}
    state, metrics = learn(speaking(5), fresh_state(NO_CRITIC), **few)
    assert int(state.gradient_steps) == 5
    assert (np.asarray(metrics["grad_norm"]) > 0).tolist() == [True] * 5 + [False] * 3
    assert (metrics["update/skipped"], metrics["update/skipped_in_a_row"], int(state.bad_updates)) == (0, 0, 0)
    assert metrics["actor/grad_norm"] == pytest.approx(np.asarray(metrics["grad_norm"])[:5].mean(), rel=1e-5)
    empty, metrics = learn(speaking(0), fresh_state(NO_CRITIC), **few)
    assert (metrics["update/skipped"], int(empty.bad_updates), int(empty.gradient_steps)) == (1, 1, 0)
    for name in ("loss", "actor/entropy", "actor/grad_norm", "actor/grad_norm_max"):
        assert np.isnan(metrics[name]), name
    again, _ = learn(speaking(0), empty, **few)
    assert int(again.bad_updates) == 2


SEPARATE = ActorCritic(decoder=made_up.SHAPE, critic="separate", shared_prefix_len=2)
FOURTHS, BUCKETS = {"grad_accum_steps": 4}, {"grad_accum_steps": 2, "length_buckets": 3}
BINS = FOURTHS | {"packing": True}
CONTINUED = {"context": SINGLE_TURN, "advantage": Gae(bootstrap_truncated=True), "kl": FixedKl(apply_to="reward")}


def equal(one, other):
    made_up.assert_close(*(jax.tree.map(np.asarray, state.params) for state, _ in (one, other)))
    for name, value in one[1].items():
        np.testing.assert_allclose(other[1][name], value, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.nightly
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


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("model", "rule", "parts"),
    [
        (NO_CRITIC, {"objective": Gspo(), "advantage": Rloo()}, FOURTHS),
        (NO_CRITIC, {"advantage": Gigpo(length_weighted=True), "mismatch": IcePop(reduction="mean")}, FOURTHS),
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
    equal(*(learn(state=start, numbers=numbers, model=model, **rule, **more) for more in ({}, parts)))


@pytest.mark.nightly
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
    equal(one, several)
    assert float(several[0].kl.coef) == pytest.approx(float(one[0].kl.coef))


@pytest.mark.nightly
def test_the_adaptive_coefficient_in_the_loss_follows_the_divergence():
    other = TRAJECTORY.replace(response=TRAJECTORY.response.replace(logprob=TRAJECTORY.response.logprob + 1.0))
    numbers = made_up.settings(kl__coef=0.5, kl__target=1e9, kl__horizon=2.0 * made_up.EPISODES)
    after, metrics = learn(other, fresh_state(reference=True), numbers, kl=AdaptiveKl(estimator="k3"))
    assert (metrics["actor/kl_coef"], float(after.kl.coef)) == (0.5, pytest.approx(0.9))


@pytest.mark.nightly
def test_devices_and_microbatches_of_their_own_length_change_nothing(of_rows, monkeypatch):
    """Half of the devices have long responses, half short ones, so means per device would be wrong."""
    scored, score_tokens = set(), actor_critic.score_tokens

    def noted(params, model, tokens, *rest):
        scored.add(tokens.shape)
        return score_tokens(params, model, tokens, *rest)

    monkeypatch.setattr(actor_critic, "score_tokens", noted)
    config = BASE.replace(**ROWS, grad_accum_steps=2, length_buckets=3)
    program = Programs(make_mesh(2)).update(MODEL, config, made_up.PLAIN)
    same(of_rows, program(fresh_state(), TRAJECTORY, ONES, made_up.KEY, settings()))
    # Two devices, two minibatches, two microbatches.
    assert {rows for rows, _ in scored} == {EPISODES * made_up.TURNS // 8}
    assert len({length for _, length in scored}) == 3
