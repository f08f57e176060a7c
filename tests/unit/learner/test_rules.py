"""Algorithms by name on made-up trajectories: what affects the gradient, and what must not."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_up import (
    BASE,
    EPISODES,
    GROUP_SIZE,
    GROUPS,
    KEY,
    MODEL,
    ONES,
    PLAIN,
    SHAPE,
    TRAJECTORY,
    TURNS,
    assert_close,
    fresh_state,
    settings,
)

from agentrl_jax.algos import advantages, kl
from agentrl_jax.algos import gigpo as gigpo
from agentrl_jax.config import decode
from agentrl_jax.config.advantages import BiLevelGae, Gae, Gigpo, Grpo, Remax, RewardToGo, Rloo, TurnGae
from agentrl_jax.config.algo import AdaptiveKl, FixedKl, FractionFilter, Gspo, IcePop, TopKFilter, UpdateRule
from agentrl_jax.config.presets import NAMES as PRESETS
from agentrl_jax.learner.batch import make_batch
from agentrl_jax.learner.update import update
from agentrl_jax.models import actor_critic, decoder, token_scores
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.mesh import make_mesh
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.packing import pack_trajectories
from agentrl_jax.setup.programs import Programs

NO_CRITIC = ActorCritic(decoder=SHAPE, critic="none")
GREEDY = jax.tree.map(lambda x: x[1::GROUP_SIZE], TRAJECTORY)
# States of two kinds, so that turns of a group share states.
STATES = jnp.asarray(np.random.default_rng(3).integers(0, 2, (EPISODES, TURNS, 1)).repeat(2, axis=2), jnp.uint32)
MET = TRAJECTORY.replace(turn=TRAJECTORY.turn.replace(state_hash=STATES))

SEEN_MASK = jnp.arange(MET.observation.shape[-1]) < MET.observation_length[..., None]


def rule(**changes):
    return BASE.replace(**changes)


def of_preset(name):
    algo = decode({"algo": {"preset": name, "minibatches": 1}}).algo
    return rule(**{key: getattr(algo, key) for key in UpdateRule.model_fields if key != "mismatch"})


def model_of(config):
    return MODEL if config.advantage.has_critic else NO_CRITIC


@pytest.fixture(scope="module")
def learn():
    """Function (config, trajectory, settings, greedy) -> (state, metrics, step)."""

    @functools.cache
    def program(config):
        return jax.jit(functools.partial(update, model=model_of(config), config=config, tx=PLAIN, shards=Shards()))

    def run(config, trajectory=MET, numbers=None, greedy=None):
        state = fresh_state(model_of(config), reference=config.kl.kind != "none")
        greedy = GREEDY if config.advantage.kind == "remax" and greedy is None else greedy
        after, metrics = program(config)(state, trajectory, ONES, KEY, numbers or settings(), greedy)
        return after, metrics, jax.tree.map(jnp.subtract, after.params, state.params)

    return run


@functools.cache
def batches(config):
    def program(state, trajectory, numbers, greedy):
        return make_batch(state, trajectory, ONES, numbers, model_of(config), config, Shards(), None, greedy)[0]

    return jax.jit(program)


def batch_of(config, trajectory=MET, numbers=None, greedy=None, state=None):
    state = fresh_state(model_of(config)) if state is None else state
    return batches(config)(state, trajectory, numbers or settings(), greedy)


def size(tree):
    return max(float(jnp.abs(x).max()) for x in jax.tree.leaves(tree))


FAST = ("gigpo", "dapo", "gspo", "cispo", "starpo_s2", "ppo")
"""Together they have every objective, a critic, a mask, GiGPO's anchor states and a divergence in the reward."""


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(n, marks=pytest.mark.slow) for n in PRESETS if n not in FAST)])
def test_every_preset_makes_a_step(learn, name):
    after, metrics, step = learn(of_preset(name))
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
def test_parts_of_a_minibatch_change_nothing(learn, changes):
    steps = [learn(rule(**changes, grad_accum_steps=parts))[2] for parts in (1, 4)]
    assert_close(*steps, 1e-6)


def test_a_mask_and_a_gather_of_the_same_groups_are_the_same(learn):
    plain = {"advantage": Grpo(whiten=True)}
    gathered = learn(rule(**plain, filter=FractionFilter(ratio=0.5)))
    masked = learn(rule(**plain, filter=TopKFilter()), numbers=settings(filter_value=2.0))
    assert gathered[1]["update/trained_tokens"] == masked[1]["update/trained_tokens"]
    assert masked[1]["rollout/filter_kept_groups"] == 2
    assert_close(gathered[2], masked[2], 1e-6)


def test_an_empty_filter_skips_the_step_and_counts_it(learn):
    flat = MET.turn.replace(reward=jnp.zeros((EPISODES, TURNS)), format_error=jnp.zeros((EPISODES, TURNS), jnp.int32))
    after, metrics, step = learn(of_preset("starpo_s2"), MET.replace(turn=flat))
    assert metrics["rollout/filter_kept_groups"] == 0
    assert metrics["update/skipped"] == 1
    assert int(after.gradient_steps) == 0
    assert size(step) == 0.0


@pytest.mark.parametrize("kind", ["entropy", "entropy_std", "length", "mean"])
def test_what_groups_are_ranked_by(kind):
    kept = batch_of(rule(advantage=Grpo(), filter=FractionFilter(ratio=0.5, by=kind)))
    response = MET.response
    sampled = np.asarray(MET.response_mask)
    values = {
        "length": sampled.sum(axis=(1, 2)),
        "mean": np.asarray(jnp.sum(jnp.where(MET.turn_mask, MET.turn.reward - 0.1 * MET.turn.format_error, 0), axis=1)),
        "entropy": -np.where(sampled, response.logprob, 0).sum(axis=(1, 2)) / sampled.sum(axis=(1, 2)),
    }
    grouped = values[kind.removesuffix("_std")].reshape(GROUPS, GROUP_SIZE)
    scores = grouped.std(axis=1, ddof=1) if kind == "entropy_std" else grouped.mean(axis=1)
    expected = sorted(np.argsort(-scores, kind="stable")[:2])
    trained = np.flatnonzero(np.asarray(kept.mask).any(axis=1))
    assert sorted(set((trained // GROUP_SIZE).tolist())) == expected


def test_members_within_groups_are_chosen_by_their_returns(learn):
    _, metrics, _ = learn(rule(advantage=Rloo(), filter_group_size=2))
    batch = batch_of(rule(advantage=Rloo(), filter_group_size=2))
    trained = np.flatnonzero(np.asarray(batch.mask).any(axis=1))
    assert np.bincount(trained // GROUP_SIZE, minlength=GROUPS).tolist() == [2] * GROUPS
    assert metrics["update/trained_tokens"] == np.asarray(MET.response.length).sum(axis=1)[trained].sum()


def per_turn(config, trajectory=MET):
    """Advantage of every turn's first token, [E, T]; NaN if no token was sampled."""
    batch = batch_of(config, trajectory)
    # The rows of an episode are contiguous, and so are the positions of a turn.
    mask, advantage = (np.asarray(x).reshape(EPISODES, TURNS, -1)[..., 0] for x in (batch.mask, batch.advantage))
    return np.where(mask, advantage, np.nan)


@pytest.mark.parametrize("anchor", ["state", "observation"])
def test_turns_are_compared_in_their_states_in_both_contexts(anchor):
    config = rule(advantage=Gigpo(anchor=anchor))
    found = per_turn(config)
    np.testing.assert_allclose(per_turn(config.replace(context="single_turn")), found, atol=1e-6)
    rewards = jnp.where(MET.turn_mask, MET.turn.reward - 0.1 * MET.turn.format_error, 0.0)
    state = STATES if anchor == "state" else gigpo.hash_tokens(MET.observation, SEEN_MASK)
    of_turns = gigpo.turn_advantages(
        gigpo.returns_to_go(rewards, 0.95),
        state,
        jnp.arange(EPISODES) // GROUP_SIZE,
        MET.turn_mask,
        normalize_std=True,
    )
    plain = per_turn(rule(advantage=Grpo()))
    kept = np.isfinite(found)
    np.testing.assert_allclose(found[kept], (plain + np.asarray(of_turns))[kept], atol=1e-5)
    assert np.abs(np.asarray(of_turns)).max() > 0.1 or anchor == "observation"


def of_slots(x, batch):
    """Rows [N, K] at the response positions of every episode, [E, T * L]; NaN where nothing is trained."""
    return np.where(np.asarray(batch.mask), np.asarray(x), np.nan).reshape(EPISODES, -1)


def token_before(tokens, position):
    return jnp.take_along_axis(tokens, position - 1, axis=1).astype(jnp.float32)


# Two of three episodes were truncated after an observation without a response.
FINAL_LENGTH = np.arange(EPISODES) % 3
FINAL = np.random.default_rng(7).integers(0, 19, (EPISODES, MET.observation.shape[-1]))
CUT_OFF = MET.replace(
    truncation=jnp.asarray(FINAL_LENGTH > 0, jnp.int32),
    final_observation=jnp.asarray(FINAL, jnp.int32),
    final_observation_length=jnp.asarray(FINAL_LENGTH, jnp.int32),
)


@pytest.mark.parametrize("context", ["full", "single_turn"])
def test_the_target_of_a_cut_off_episode_goes_on_with_the_value_of_its_last_observation(context, monkeypatch):
    monkeypatch.setattr(actor_critic, "values", lambda params, model, *row: jnp.cos(token_before(*row)))
    config = rule(
        advantage=Gae(whiten=False, bootstrap_truncated=True),
        context=context,
        filter=FractionFilter(ratio=0.5),
        grad_accum_steps=2,
    )
    program = jax.jit(
        lambda numbers: make_batch(fresh_state(), CUT_OFF, ONES, numbers, MODEL, config, Shards(), None, None)
    )
    batch, _, metrics = program(settings(gamma=0.5))
    target = of_slots(batch.target, batch)
    earned = np.asarray(jnp.sum(jnp.where(MET.turn_mask, MET.turn.reward - 0.1 * MET.turn.format_error, 0.0), axis=1))
    value = np.cos(FINAL[np.arange(EPISODES), FINAL_LENGTH - 1]) * (FINAL_LENGTH > 0)
    trained = np.isfinite(target).any(axis=1)
    assert trained.sum() == EPISODES // 2
    for episode in np.flatnonzero(trained):
        tokens = target[episode][np.isfinite(target[episode])]
        to_come = 0.5 ** np.arange(len(tokens))[::-1]
        np.testing.assert_allclose(tokens, to_come * (earned[episode] + 0.5 * value[episode]), atol=1e-5)
    known = trained & (FINAL_LENGTH > 0)
    assert float(metrics["critic/final_value_mean"]) == pytest.approx(value[known].mean(), abs=1e-5)


REWARD = FixedKl(apply_to="reward")
CUT = {
    "gae": {"advantage": Gae(whiten=False), "kl": REWARD},
    "gae by turn": {
        "advantage": Gae(whiten=False, reward_placement="turn"),
        "filter": FractionFilter(ratio=0.5),
    },
    "turn_gae": {"advantage": TurnGae(whiten=False, reward_placement="turn"), "kl": REWARD},
    "turn_gae at the end": {"advantage": TurnGae(whiten=False), "filter_group_size": 2},
    "bi_level_gae": {"advantage": BiLevelGae(whiten=False, reward_placement="turn"), "kl": REWARD},
    "bi_level_gae at the end": {"advantage": BiLevelGae(whiten=False, reward_normalization="mean_std")},
    "gae that goes on": {"advantage": Gae(whiten=False, bootstrap_truncated=True), "filter_group_size": 3},
    "turn_gae that goes on": {"advantage": TurnGae(whiten=False, bootstrap_truncated=True), "kl": REWARD},
    "reward_to_go": {"advantage": RewardToGo(reward_placement="turn"), "kl": REWARD},
    "grpo": {"advantage": Grpo(length_weighted=True)},
    "rloo": {"advantage": Rloo(spread_weighted=True)},
    "remax": {"advantage": Remax()},
    "gigpo": {"advantage": Gigpo()},
    "hgpo": {"advantage": Gigpo(history=1)},
}


@pytest.mark.parametrize("changes", CUT.values(), ids=CUT)
def test_how_an_episode_is_cut_into_rows_changes_no_advantage(changes, monkeypatch):
    """With critic and reference that read only one token, everything is the same in both contexts."""
    monkeypatch.setattr(actor_critic, "values", lambda params, model, *row: jnp.cos(token_before(*row)))
    monkeypatch.setattr(actor_critic, "logprobs", lambda params, model, *row: -3.0 + jnp.sin(token_before(*row[:2])))
    config = rule(**changes)
    numbers = settings(gamma=0.8, lam=0.7, turn_gamma=0.6, kl_coef=0.3)
    state = fresh_state(model_of(config), reference=True)
    failed = MET.turn.failed.at[EPISODES - 1, 0].set(True)
    trajectory = CUT_OFF.replace(turn=MET.turn.replace(failed=failed))

    greedy = GREEDY if config.advantage.kind == "remax" else None

    def found(context):
        of = config.replace(context=context)
        program = jax.jit(
            lambda: make_batch(state, trajectory, ONES, numbers, model_of(of), of, Shards(), None, greedy)[0]
        )
        batch = program()
        return [of_slots(x, batch) for x in (batch.advantage, batch.target)]

    whole, cut = found("full"), found("single_turn")
    np.testing.assert_allclose(cut, whole, atol=1e-5)
    assert np.nanstd(whole[0]) > 0.05


@pytest.mark.parametrize(
    ("advantage", "name", "values"),
    [
        (BiLevelGae, "turn_gamma", (0.95, 0.2)),
        (TurnGae, "gamma", (1.0, 0.2)),
    ],
)
def test_discounts_of_turns_reach_rows_of_single_turns(learn, advantage, name, values):
    config = rule(advantage=advantage(whiten=False, reward_placement="turn"), context="single_turn")
    steps = [learn(config, numbers=settings(**{name: value}))[2] for value in values]
    assert size(jax.tree.map(jnp.subtract, *steps)) > 1e-4


def test_remax_takes_the_greedy_return_off(learn):
    config = rule(advantage=Remax())
    batch = batch_of(config, greedy=GREEDY)
    earned = jnp.sum(jnp.where(MET.turn_mask, MET.turn.reward - 0.1 * MET.turn.format_error, 0.0), axis=1)
    expected = earned - jnp.repeat(earned[1::GROUP_SIZE], GROUP_SIZE)
    found = np.where(np.asarray(batch.mask).any(axis=1), np.asarray(batch.advantage)[:, 0], np.nan)
    kept = np.isfinite(found)
    np.testing.assert_allclose(found[kept], np.asarray(expected)[kept], atol=1e-6)
    with pytest.raises(ValueError, match="greedy episode"):
        batch_of(config)


@pytest.mark.parametrize("advantage", [TurnGae, BiLevelGae])
def test_turn_ends_are_those_of_the_trajectory(advantage):
    """Without discount and with a critic of zeros, advantages are the sums of later rewards, turn by turn."""
    config = rule(advantage=advantage(whiten=False, reward_placement="turn"))
    state = fresh_state()
    zero = state.replace(params=jax.tree.map(jnp.zeros_like, state.params))
    batch = batch_of(config, numbers=settings(turn_gamma=1.0), state=zero)
    rewards = np.asarray(jnp.where(MET.turn_mask, MET.turn.reward - 0.1 * MET.turn.format_error, 0.0))
    to_come = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1]
    slots = batch.mask.shape[1] // TURNS
    for row in range(EPISODES):
        mask = np.asarray(batch.mask[row])
        expected = np.repeat(to_come[row], slots)
        np.testing.assert_allclose(np.asarray(batch.advantage[row])[mask], expected[mask], atol=1e-5)


@pytest.mark.parametrize("grouping", ["state", "task", "batch"])
def test_returns_are_normalized_among_those_that_belong_together(grouping):
    tasks = jnp.repeat(jnp.array([0, 1]), EPISODES // 2)
    trajectory = MET.replace(ids=MET.ids.replace(task=tasks))
    config = rule(
        advantage=RewardToGo(whiten=False, reward_normalization="mean", reward_grouping=grouping),
        task_names=("a", "b"),
    )
    batch = batch_of(config, trajectory)
    earned = np.asarray(jnp.sum(jnp.where(MET.turn_mask, MET.turn.reward - 0.1 * MET.turn.format_error, 0.0), axis=1))
    label = {"state": np.arange(EPISODES) // GROUP_SIZE, "task": np.asarray(tasks), "batch": np.zeros(EPISODES, int)}
    centered = earned - np.array([earned[label[grouping] == one].mean() for one in label[grouping]])
    for row in range(EPISODES):
        mask = np.asarray(batch.mask[row])
        np.testing.assert_allclose(np.asarray(batch.advantage[row])[mask], centered[row], atol=1e-5)


@pytest.mark.parametrize("dropped", ["broken", "filtered", "filtered group"])
@pytest.mark.parametrize("grouping", ["state", "batch"])
def test_returns_are_normalized_among_those_that_are_learned_from(grouping, dropped):
    """Members are left out because an environment broke or by a filter; no other member is compared with them."""
    changes = {
        "filtered": {"filter_group_size": 3},
        "filtered group": {"filter": TopKFilter()},
        "broken": {},
    }[dropped]
    config = rule(advantage=RewardToGo(whiten=False, reward_normalization="mean", reward_grouping=grouping), **changes)
    failed = MET.turn.failed.at[1, 0].set(dropped == "broken")
    batch = batch_of(config, MET.replace(turn=MET.turn.replace(failed=failed)), settings(filter_value=3.0))
    mask = np.asarray(batch.mask)
    learned = mask.any(axis=1)
    assert 0 < EPISODES - learned.sum() <= GROUPS
    earned = np.asarray(jnp.sum(jnp.where(MET.turn_mask, MET.turn.reward - 0.1 * MET.turn.format_error, 0.0), axis=1))
    label = np.arange(EPISODES) // GROUP_SIZE if grouping == "state" else np.zeros(EPISODES, int)
    centered = [
        earned[i] - earned[learned & (label == label[i])].mean() if learned[i] else 0.0 for i in range(EPISODES)
    ]
    for row in range(EPISODES):
        np.testing.assert_allclose(np.asarray(batch.advantage[row])[mask[row]], centered[row], atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "name", "values"),
    [
        ({"advantage": Gigpo()}, "step_weight", (0.0, 2.0)),
        ({"advantage": Gigpo()}, "turn_gamma", (0.1, 1.0)),
        ({"advantage": Gigpo(history=1)}, "history_power", (0.0, 4.0)),
        ({"advantage": Grpo(), "filter": TopKFilter()}, "filter_value", (1.0, 3.0)),
    ],
)
def test_the_numbers_of_a_rule_are_read(learn, changes, name, values):
    steps = [learn(rule(**changes), numbers=settings(**{name: value}))[2] for value in values]
    assert size(jax.tree.map(jnp.subtract, *steps)) > 1e-6


def test_several_devices_make_the_same_step():
    """ReMax, whose greedy episodes are replicated to every device, with a coefficient in the state."""
    config = rule(advantage=Remax(), kl=AdaptiveKl(estimator="k2"))
    made = []
    for devices in (1, 2):
        programs = Programs(make_mesh(devices))
        state = jax.tree.map(jnp.copy, fresh_state(NO_CRITIC, reference=True))
        program = programs.update(NO_CRITIC, config, PLAIN)
        made.append(program(state, MET, ONES, KEY, settings(kl_coef=0.5, kl_target=1e9, kl_horizon=64.0), GREEDY))
    (one, known), (two, metrics) = made
    assert_close(*(jax.tree.map(np.asarray, state.params) for state in (one, two)), 1e-5)
    assert float(two.kl.coef) == pytest.approx(float(one.kl.coef))
    assert float(two.kl.coef) < 1.0
    np.testing.assert_allclose(metrics["actor/kl"], known["actor/kl"], atol=1e-9)


@pytest.mark.slow
def test_several_devices_agree_on_rows_of_turns_and_on_what_was_cut_off():
    """With more rows in the parts of all devices than episodes, so that the last observation is repeated."""
    config = rule(
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


@pytest.mark.parametrize(
    ("where", "kind", "target", "factor"),
    [("loss", "k2", 1e9, 0.9), ("reward", "k1", 1e9, 0.9), ("reward", "k1", 1e-9, 1.1)],
)
def test_the_adaptive_coefficient_follows_the_divergence(learn, where, kind, target, factor):
    """clip(error, -0.2, 0.2) * episodes / horizon per step; the coefficient is in the state and so in checkpoints."""
    other = TRAJECTORY.replace(response=TRAJECTORY.response.replace(logprob=TRAJECTORY.response.logprob + 1.0))
    numbers = settings(kl_coef=0.5, kl_target=target, kl_horizon=2.0 * EPISODES)
    after, metrics, _ = learn(rule(kl=AdaptiveKl(apply_to=where, estimator=kind)), other, numbers)
    assert metrics["actor/kl_coef"] == 0.5
    assert float(after.kl.coef) == pytest.approx(factor)
    fixed, _, _ = learn(rule(kl=FixedKl(apply_to=where, estimator=kind)), other, numbers)
    assert float(fixed.kl.coef) == 1.0


def test_the_whole_divergence_is_that_of_the_distributions(learn, monkeypatch):
    """At every sampled token, in one chunk or in several; and it pulls the policy towards the reference."""
    config = rule(kl=FixedKl(estimator="full"), advantage=Rloo())
    state = fresh_state(NO_CRITIC, reference=True)
    other = jax.tree.map(lambda x: x + 0.3 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), state.reference)
    state = state.replace(reference=other)
    rows = pack_trajectories(MET, "full")

    def logits(policy):
        hidden = decoder.forward(policy, SHAPE, rows.tokens)
        return decoder.logits(policy, jnp.take_along_axis(hidden, rows.position[..., None] - 1, axis=1))

    per_token = kl.full(logits(state.params["policy"]), logits(other))
    expected = jnp.sum(jnp.where(rows.response_mask, per_token, 0)) / jnp.sum(rows.response_mask)
    steps = []
    for most in (token_scores.LOGITS_AT_ONCE, 5 * SHAPE.vocab_size):
        monkeypatch.setattr(token_scores, "LOGITS_AT_ONCE", most)
        program = jax.jit(functools.partial(update, model=NO_CRITIC, config=config, tx=PLAIN, shards=Shards()))
        after, metrics = program(state, MET, ONES, KEY, settings(kl_coef=10.0))
        assert float(metrics["actor/kl"]) == pytest.approx(float(expected), rel=1e-4)
        steps.append(jax.tree.map(jnp.subtract, after.params, state.params))
    assert_close(*steps, 1e-5)
    moved = kl.full(logits(after.params["policy"]), logits(other))
    assert float(jnp.sum(jnp.where(rows.response_mask, moved, 0))) < float(
        jnp.sum(jnp.where(rows.response_mask, per_token, 0))
    )


def test_whitening_comes_last():
    plain, white = (batch_of(rule(advantage=Rloo(whiten=whiten))) for whiten in (False, True))
    np.testing.assert_allclose(white.advantage, advantages.whiten(plain.advantage, plain.mask), atol=1e-5)


def test_a_group_whose_greedy_episode_failed_is_not_trained_on():
    """Also where advantages are whitened, after which 0 is no longer 0."""
    config = rule(advantage=Remax(whiten=True))
    failed = GREEDY.turn.failed.at[0, 0].set(True)
    batch = batch_of(config, greedy=GREEDY.replace(turn=GREEDY.turn.replace(failed=failed)))
    size = len(batch.mask) // len(failed)
    assert not batch.mask[:size].any()
    assert batch.mask[size:].any()
    whole = batch_of(config, greedy=GREEDY)
    assert whole.mask[:size].any()
