"""Algorithms by name on made-up trajectories: the batch that they make, and what must not affect it."""

import functools

import chex
import jax
import jax.numpy as jnp
import made_up
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
    SAID,
    SEEN,
    SHAPE,
    TRAJECTORY,
    TURNS,
    fresh_state,
    program,
    settings,
)

from agentrl_jax.algos import advantages
from agentrl_jax.algos import gigpo as gigpo
from agentrl_jax.config import decode
from agentrl_jax.config.advantages import BiLevelGae, Gae, Gigpo, Grpo, Remax, RewardToGo, Rloo, TurnGae
from agentrl_jax.config.algo import FixedKl, FractionFilter, NoCorrection, TopKFilter, UpdateRule
from agentrl_jax.learner.batch import make_batch
from agentrl_jax.models import actor_critic
from agentrl_jax.models.actor_critic import ActorCritic
from agentrl_jax.parallel.shards import Shards

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


@functools.cache
def batches(config):
    def program(state, trajectory, numbers, greedy):
        return make_batch(state, trajectory, ONES, numbers, model_of(config), config, Shards(), None, greedy)

    return jax.jit(program)


def made(config, trajectory=MET, numbers=None, greedy=None, state=None):
    """The batch of an update, and metrics."""
    state = fresh_state(model_of(config), reference=config.kl.kind != "none") if state is None else state
    batch, _, metrics = batches(config)(state, trajectory, numbers or settings(), greedy)
    return batch, metrics


def batch_of(config, trajectory=MET, numbers=None, greedy=None, state=None):
    return made(config, trajectory, numbers, greedy, state)[0]


def differ(one, other):
    return float(jnp.max(jnp.abs(one - other))) > 1e-4


@pytest.mark.parametrize("name", ["gigpo", "dapo", "starpo_s2", "ppo"])
def test_presets_make_a_batch(name):
    config = of_preset(name)
    batch, metrics = made(config, greedy=GREEDY if config.advantage.kind == "remax" else None)
    assert metrics["update/trained_tokens"] == np.sum(batch.mask) > 0
    chex.assert_tree_all_finite((batch.advantage, batch.target))
    assert np.std(np.asarray(batch.advantage)[np.asarray(batch.mask)]) > 0.05


def test_a_mask_and_a_gather_of_the_same_groups_are_the_same():
    plain = {"advantage": Grpo(whiten=True)}
    gathered, _ = made(rule(**plain, filter=FractionFilter(ratio=0.5)))
    masked, metrics = made(rule(**plain, filter=TopKFilter()), numbers=settings(filter_value=2.0))
    assert metrics["rollout/filter_kept_groups"] == 2
    np.testing.assert_array_equal(gathered.mask, masked.mask)
    np.testing.assert_allclose(gathered.advantage, masked.advantage, atol=1e-6)


def test_an_empty_filter_skips_the_step_and_counts_it():
    flat = MET.turn.replace(reward=jnp.zeros((EPISODES, TURNS)), format_error=jnp.zeros((EPISODES, TURNS), jnp.int32))
    start = fresh_state()
    after, metrics = program(MODEL, PLAIN, of_preset("starpo_s2"))(
        start, MET.replace(turn=flat), ONES, KEY, settings(), None
    )
    assert metrics["rollout/filter_kept_groups"] == 0
    assert metrics["update/skipped"] == 1
    assert int(after.gradient_steps) == 0
    chex.assert_trees_all_equal(after.params, start.params)


def test_filter_keeps_the_groups_that_differ_most():
    """Groups 0 and 3 vary most, or least."""
    spread = np.repeat([3.0, 0.0, 0.5, 2.0], GROUP_SIZE)[:, None] * np.tile([1.0, -1.0, 0.5, 0.0], GROUPS)[:, None]
    reward = jnp.asarray(np.concatenate([spread, np.zeros_like(spread)], axis=1), jnp.float32)
    turn = MET.turn.replace(reward=reward, format_error=jnp.zeros((EPISODES, TURNS), jnp.int32))
    for largest, kept in ((True, [0, 3]), (False, [1, 2])):
        config = rule(filter=FractionFilter(ratio=0.5, largest=largest))
        batch, metrics = made(config, MET.replace(turn=turn))
        trained = np.flatnonzero(np.asarray(batch.mask).any(axis=1)) // GROUP_SIZE
        assert sorted(set(trained.tolist())) == kept
        assert metrics["update/trained_tokens"] == np.sum(np.asarray(MET.response.length).reshape(GROUPS, -1)[kept])


@pytest.mark.parametrize("method", ["mean", "mean_std"])
def test_normalized_returns_do_not_see_broken_episodes(method):
    lost = jnp.arange(EPISODES) % 5 == 0
    turn = MET.turn.replace(failed=jnp.zeros((EPISODES, TURNS), bool).at[:, 0].set(lost))
    spoiled = turn.replace(reward=jnp.where(lost[:, None], 1e3, turn.reward))
    config = rule(advantage=Gae(reward_normalization=method))
    one, other = (batch_of(config, MET.replace(turn=t)) for t in (turn, spoiled))
    assert not np.asarray(one.mask)[np.asarray(lost)].any()
    np.testing.assert_array_equal(jnp.where(one.mask, one.advantage, 0), jnp.where(other.mask, other.advantage, 0))
    np.testing.assert_array_equal(jnp.where(one.mask, one.target, 0), jnp.where(other.mask, other.target, 0))


def test_padding_changes_nothing():
    """Scores, advantages and targets of the sampled tokens, in larger arrays."""
    plain, padded = (batch_of(BASE, made_up.make_trajectory(seen=SEEN + more, said=SAID + more)) for more in (0, 3))
    masks = np.asarray(plain.mask), np.asarray(padded.mask)
    for of in ("advantage", "target", "behavior_logprob"):
        found = [np.asarray(getattr(batch, of))[mask] for batch, mask in zip((plain, padded), masks)]
        np.testing.assert_allclose(*found, atol=1e-5, err_msg=of)
    values = [np.asarray(batch.before.value)[mask] for batch, mask in zip((plain, padded), masks)]
    np.testing.assert_allclose(*values, atol=1e-5)


def test_members_within_groups_are_chosen_by_their_returns():
    batch, metrics = made(rule(advantage=Rloo(), filter_group_size=2))
    trained = np.flatnonzero(np.asarray(batch.mask).any(axis=1))
    assert np.bincount(trained // GROUP_SIZE, minlength=GROUPS).tolist() == [2] * GROUPS
    assert metrics["update/trained_tokens"] == np.asarray(MET.response.length).sum(axis=1)[trained].sum()


TURNS_ALONE = {"context": "single_turn"}


@pytest.mark.parametrize(
    ("changes", "name", "values"),
    [
        ({"advantage": BiLevelGae(whiten=False, reward_placement="turn"), **TURNS_ALONE}, "turn_gamma", (0.95, 0.2)),
        ({"advantage": TurnGae(whiten=False, reward_placement="turn"), **TURNS_ALONE}, "gamma", (1.0, 0.2)),
        ({"advantage": Gigpo()}, "step_weight", (0.0, 2.0)),
        ({"advantage": Gigpo()}, "turn_gamma", (0.1, 1.0)),
        ({"advantage": Gigpo(history=1)}, "history_power", (0.0, 4.0)),
        ({"advantage": Grpo(), "filter": TopKFilter()}, "filter_value", (1.0, 3.0)),
    ],
)
def test_the_numbers_of_a_rule_are_read(changes, name, values):
    batches = [batch_of(rule(**changes), numbers=settings(**{name: value})) for value in values]
    assert differ(*(jnp.where(batch.mask, batch.advantage, 0) for batch in batches))


def test_the_penalty_in_the_reward_starts_from_the_learner():
    """The policy is its own reference; with the rollout's log-probabilities, k1 would be their difference."""
    config = rule(kl=FixedKl(apply_to="reward"), advantage=RewardToGo(whiten=False))
    learner, rollout = (
        made(config.replace(mismatch=NoCorrection(ratio_from=start)))[1]["actor/reward_kl_penalty"]
        for start in ("learner", "rollout")
    )
    assert float(learner) == pytest.approx(0.0, abs=1e-6)
    assert abs(float(rollout)) > 1e-3


@pytest.mark.parametrize("kind", ["entropy_std", "length", "mean"])
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
    "bi_level_gae": {"advantage": BiLevelGae(whiten=False, reward_placement="turn"), "kl": REWARD},
    "bi_level_gae at the end": {"advantage": BiLevelGae(whiten=False, reward_normalization="mean_std")},
    "turn_gae that goes on": {"advantage": TurnGae(whiten=False, bootstrap_truncated=True), "kl": REWARD},
    "reward_to_go": {"advantage": RewardToGo(reward_placement="turn"), "kl": REWARD},
    "grpo": {"advantage": Grpo(length_weighted=True)},
    "remax": {"advantage": Remax()},
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


def test_remax_takes_the_greedy_return_off():
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


@pytest.mark.parametrize(
    ("grouping", "dropped"),
    [("state", "broken"), ("batch", "broken"), ("state", "filtered"), ("batch", "filtered group")],
)
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
