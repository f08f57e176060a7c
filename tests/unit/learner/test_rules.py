import functools

import jax
import jax.numpy as jnp
import made_up
import numpy as np
import pytest
from made_up import CUT_OFF, EPISODES, FINAL_LENGTH, GREEDY, GROUP_SIZE, ONES, TURNS, fresh_state, settings

from agentrl_jax.algos import gigpo
from agentrl_jax.config.advantages import BiLevelGae, Gae, Gigpo, Grpo, Remax, RewardToGo, TurnGae
from agentrl_jax.config.algo import FixedKl
from agentrl_jax.config.filters import FractionFilter, TopKFilter
from agentrl_jax.config.mismatch import NoCorrection
from agentrl_jax.errors import BadValue
from agentrl_jax.learner.batch import make_batch
from agentrl_jax.models import actor_critic
from agentrl_jax.parallel.shards import Shards
from agentrl_jax.rollout.contexts import FULL, SINGLE_TURN

# States of two kinds, so that turns of a group share states.
STATES = jnp.asarray(np.random.default_rng(3).integers(0, 2, (EPISODES, TURNS, 1)).repeat(2, axis=2), jnp.uint32)
MET = made_up.TRAJECTORY.replace(turn=made_up.TRAJECTORY.turn.replace(state_hash=STATES))

REWARDS = np.where(MET.turn_mask, np.asarray(MET.turn.reward) - 0.1 * np.asarray(MET.turn.format_error), 0.0)
EARNED = REWARDS.sum(axis=1)
SEEN_MASK = jnp.arange(MET.observation.shape[-1]) < MET.observation_length[..., None]


def rule(**changes):
    return made_up.BASE.replace(**changes)


def model_of(config):
    return made_up.MODEL if config.advantage.has_critic else made_up.NO_CRITIC


@functools.cache
def batches(config):
    def program(state, trajectory, numbers, greedy):
        return make_batch(state, trajectory, ONES, numbers, model_of(config), config, Shards(), None, greedy)

    return jax.jit(program)


def made(config, trajectory=MET, numbers=None, greedy=None, state=None):
    """A batch and its metrics."""
    state = fresh_state(model_of(config), reference=config.kl.kind != "none") if state is None else state
    return batches(config)(state, trajectory, numbers or settings(), greedy)[::2]


def assert_advantages(batch, expected, atol=1e-5):
    """The advantages of all trained tokens; `expected` has one a row, or one a response position."""
    expected = np.broadcast_to(expected.reshape(EPISODES, -1), batch.mask.shape)
    mask = np.asarray(batch.mask)
    np.testing.assert_allclose(np.asarray(batch.advantage)[mask], expected[mask], atol=atol)


def test_padding_changes_nothing():
    def numbers(more):
        trajectory = made_up.make_trajectory(seen=made_up.SEEN + more, said=made_up.SAID + more)
        batch = made(made_up.BASE, trajectory)[0]
        arrays = (batch.advantage, batch.target, batch.behavior_logprob, batch.before.value)
        return [np.asarray(x)[np.asarray(batch.mask)] for x in arrays]

    np.testing.assert_allclose(numbers(0), numbers(3), atol=1e-5)


def test_the_penalty_in_the_reward_starts_from_the_learner():
    config = rule(kl=FixedKl(apply_to="reward"), advantage=RewardToGo(whiten=False))
    metrics = made(config.replace(mismatch=NoCorrection(ratio_from="learner")))[1]
    assert float(metrics["actor/reward_kl_penalty"]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize(("kind", "sign"), [("entropy_std", 1), ("length", 1), ("mean", 1), ("std", -1)])
def test_what_groups_are_ranked_by(kind, sign):
    kept, metrics = made(rule(advantage=Grpo(), filter=FractionFilter(ratio=0.5, by=kind, largest=sign > 0)))
    sampled = np.asarray(MET.response_mask)
    values = {
        "length": sampled.sum(axis=(1, 2)),
        "mean": EARNED,
        "std": EARNED,
        "entropy_std": -np.where(sampled, MET.response.logprob, 0).sum(axis=(1, 2)) / sampled.sum(axis=(1, 2)),
    }
    grouped = values[kind].reshape(made_up.GROUPS, GROUP_SIZE)
    scores = grouped.std(axis=1, ddof=1) if kind.endswith("std") else grouped.mean(axis=1)
    expected = sorted(np.argsort(-sign * scores, kind="stable")[:2])
    trained = np.flatnonzero(np.asarray(kept.mask).any(axis=1))
    assert sorted(set((trained // GROUP_SIZE).tolist())) == expected
    assert metrics["update/trained_tokens"] == sampled.reshape(made_up.GROUPS, -1)[expected].sum()


def per_turn(config, trajectory=MET):
    """Advantage of every turn's first token, [E, T]; NaN if no token was sampled."""
    batch = made(config, trajectory)[0]
    # The rows of an episode are contiguous, and so are the positions of a turn.
    mask, advantage = (np.asarray(x).reshape(EPISODES, TURNS, -1)[..., 0] for x in (batch.mask, batch.advantage))
    return np.where(mask, advantage, np.nan)


@pytest.mark.parametrize("anchor", ["state", "observation"])
def test_turns_are_compared_in_their_states(anchor):
    found = per_turn(rule(advantage=Gigpo(anchor=anchor)))
    state = STATES if anchor == "state" else gigpo.hash_tokens(MET.observation, SEEN_MASK)
    of_turns = gigpo.turn_advantages(
        gigpo.returns_to_go(REWARDS, 0.95), state, jnp.arange(EPISODES) // GROUP_SIZE, MET.turn_mask, normalize_std=True
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


@pytest.mark.parametrize("context", [FULL, SINGLE_TURN])
def test_the_target_of_a_cut_off_episode_goes_on_with_the_value_of_its_last_observation(context, monkeypatch):
    monkeypatch.setattr(actor_critic, "values", lambda params, model, *row: jnp.cos(token_before(*row)))
    config = rule(
        advantage=Gae(whiten=False, bootstrap_truncated=True),
        context=context,
        filter=FractionFilter(ratio=0.5),
        grad_accum_steps=2,
    )
    program = jax.jit(
        lambda numbers: make_batch(fresh_state(), CUT_OFF, ONES, numbers, made_up.MODEL, config, Shards(), None, None)
    )
    batch, _, metrics = program(settings(advantage__gamma=0.5))
    target = of_slots(batch.target, batch)
    value = np.cos(np.asarray(CUT_OFF.final_observation)[np.arange(EPISODES), FINAL_LENGTH - 1]) * (FINAL_LENGTH > 0)
    trained = np.isfinite(target).any(axis=1)
    assert trained.sum() == EPISODES // 2
    for episode in np.flatnonzero(trained):
        tokens = target[episode][np.isfinite(target[episode])]
        to_come = 0.5 ** np.arange(len(tokens))[::-1]
        np.testing.assert_allclose(tokens, to_come * (EARNED[episode] + 0.5 * value[episode]), atol=1e-5)
    known = trained & (FINAL_LENGTH > 0)
    assert float(metrics["critic/final_value_mean"]) == pytest.approx(value[known].mean(), abs=1e-5)


REWARD = FixedKl(apply_to="reward")
CUT = {
    "gae": {"advantage": Gae(whiten=False), "kl": REWARD},
    "gae by turn": {"advantage": Gae(whiten=False, reward_placement="turn"), "filter": FractionFilter(ratio=0.5)},
    "turn_gae": {"advantage": TurnGae(whiten=False, reward_placement="turn"), "kl": REWARD},
    "bi_level_gae": {"advantage": BiLevelGae(whiten=False, reward_placement="turn"), "kl": REWARD},
    "turn_gae that goes on": {"advantage": TurnGae(whiten=False, bootstrap_truncated=True), "kl": REWARD},
    "reward_to_go": {"advantage": RewardToGo(reward_placement="turn"), "kl": REWARD},
    "grpo": {"advantage": Grpo(length_weighted=True)},
    "hgpo": {"advantage": Gigpo(history=1)},
}


@pytest.mark.parametrize("changes", CUT.values(), ids=CUT)
def test_how_an_episode_is_cut_into_rows_changes_no_advantage(changes, monkeypatch):
    """With critic and reference that read only one token, everything is the same in both contexts."""
    monkeypatch.setattr(actor_critic, "values", lambda params, model, *row: jnp.cos(token_before(*row)))
    monkeypatch.setattr(actor_critic, "logprobs", lambda params, model, *row: -3.0 + jnp.sin(token_before(*row[:2])))
    config = rule(**changes)
    numbers = settings(advantage__gamma=0.8, advantage__lam=0.7, advantage__turn_gamma=0.6, kl__coef=0.3)
    state = fresh_state(model_of(config), reference=True)
    failed = MET.turn.failed.at[EPISODES - 1, 0].set(True)
    trajectory = CUT_OFF.replace(turn=MET.turn.replace(failed=failed))

    @jax.jit
    def both():
        rules = (config.replace(context=context) for context in (FULL, SINGLE_TURN))
        return [make_batch(state, trajectory, ONES, numbers, model_of(of), of, Shards(), None, None)[0] for of in rules]

    whole, cut = ([of_slots(x, batch) for x in (batch.advantage, batch.target)] for batch in both())
    np.testing.assert_allclose(cut, whole, atol=1e-5)
    assert np.nanstd(whole[0]) > 0.05


def test_remax_takes_the_greedy_return_off():
    expected = EARNED - np.repeat(EARNED[1::GROUP_SIZE], GROUP_SIZE)
    assert_advantages(made(rule(advantage=Remax()), greedy=GREEDY)[0], expected, 1e-6)
    with pytest.raises(BadValue) as refused:
        made(rule(advantage=Remax()))[0]
    assert refused.value.key == "baseline"


@pytest.mark.parametrize("advantage", [TurnGae, BiLevelGae])
def test_turn_ends_are_those_of_the_trajectory(advantage):
    """Without discount and with a critic of zeros, advantages are the sums of later rewards, turn by turn."""
    config = rule(advantage=advantage(whiten=False, reward_placement="turn"))
    state = fresh_state()
    zero = state.replace(params=jax.tree.map(jnp.zeros_like, state.params))
    batch = made(config, numbers=settings(advantage__turn_gamma=1.0), state=zero)[0]
    to_come = np.cumsum(REWARDS[:, ::-1], axis=1)[:, ::-1]
    assert_advantages(batch, np.repeat(to_come, batch.mask.shape[1] // TURNS, axis=1))


def test_a_group_whose_greedy_episode_failed_is_not_trained_on():
    """Also where advantages are whitened, after which 0 is no longer 0."""
    for fails in (False, True):
        failed = GREEDY.turn.failed.at[0, 0].set(fails)
        greedy = GREEDY.replace(turn=GREEDY.turn.replace(failed=failed))
        trained = made(rule(advantage=Remax(whiten=True)), greedy=greedy)[0].mask.reshape(made_up.GROUPS, -1)
        assert trained.any(axis=1).tolist() == [not fails, True, True, True]


@pytest.mark.parametrize(
    ("grouping", "changes", "broken", "left_out"),
    [
        *[(grouping, {}, False, [0, 0, 0, 0]) for grouping in ("state", "task", "batch")],
        ("batch", {}, True, [0, 0, 0, 1]),
        ("state", {"filter_group_size": 3}, False, [1, 1, 1, 1]),
        ("batch", {"filter": TopKFilter()}, False, [0, 0, 0, 4]),
    ],
)
def test_returns_are_normalized_among_those_that_belong_together_and_are_learned_from(
    grouping, changes, broken, left_out
):
    groups = np.arange(EPISODES) // GROUP_SIZE
    advantage = RewardToGo(whiten=False, reward_normalization="mean", reward_grouping=grouping)
    config = rule(advantage=advantage, task_names=("a", "b"), **changes)
    turn = MET.turn.replace(failed=MET.turn.failed.at[1, 0].set(broken))
    trajectory = MET.replace(turn=turn, ids=MET.ids.replace(task=jnp.asarray(groups // 2)))
    batch = made(config, trajectory, settings(filter__k=3.0))[0]
    learned = np.asarray(batch.mask).any(axis=1)
    assert sorted(np.bincount(groups[~learned], minlength=made_up.GROUPS)) == left_out
    label = {"state": groups, "task": groups // 2, "batch": 0 * groups}[grouping]
    centered = [EARNED[i] - EARNED[learned & (label == label[i])].mean() for i in range(EPISODES)]
    assert_advantages(batch, np.array(centered))
