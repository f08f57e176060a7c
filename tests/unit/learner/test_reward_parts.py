"""Parts of the reward, their sums as they are and normalized apart, and truncated episodes that are not trained on."""

import jax.numpy as jnp
import numpy as np
import pytest
from made_up import CUT_OFF, EPISODES, GROUP_SIZE, GROUPS, NO_CRITIC, assert_close, learn, settings
from parted_episodes import EPISODES_OF_TWO, LAST, LENGTH, MOVED, SUCCESS, TASK, rule_with

from agentrl_jax.config.advantages import Grpo
from agentrl_jax.config.rewards import Info, Tokens
from agentrl_jax.learner.batch import _normalized_sums
from agentrl_jax.learner.measures import groups_of, measure
from agentrl_jax.rollout.returns import NamedPart, RewardRule, total_returns


def normalized(x, valid):
    """By group, over members that count."""
    found = np.zeros((GROUPS, GROUP_SIZE))
    for row, known, out in zip(x, valid, found):
        if known.sum() > 1 and np.std(row[known], ddof=1) > 1e-6:
            out[known] = (row[known] - row[known].mean()) / (np.std(row[known], ddof=1) + 1e-6)
    return found


def sums_of(rule, trajectory=EPISODES_OF_TWO):
    groups = groups_of(trajectory, total_returns(trajectory, rule), GROUP_SIZE)
    groups = groups._replace(valid=groups.valid.at[1, 2].set(False))
    return np.asarray(_normalized_sums(trajectory, groups, rule)), np.asarray(groups.valid)


def test_parts_are_normalized_apart_and_added():
    rule = rule_with({"tokens.weight": -0.5, "moved.weight": 0.25}, tokens=Tokens(), moved=Info(key="moved"))
    found, valid = sums_of(rule)
    of = {"environment": EPISODES_OF_TWO.turn.reward, "tokens": LENGTH, "moved": MOVED}
    of = {name: normalized(np.sum(x, axis=1).reshape(GROUPS, GROUP_SIZE), valid) for name, x in of.items()}
    expected = of["environment"] - 0.5 * of["tokens"] + 0.25 * of["moved"]
    np.testing.assert_allclose(found, np.where(valid, expected, 0.0), rtol=1e-4, atol=1e-5)
    scaled = EPISODES_OF_TWO.replace(turn=EPISODES_OF_TWO.turn.replace(info={"moved": 100.0 * jnp.asarray(MOVED)}))
    np.testing.assert_allclose(sums_of(rule, scaled)[0], found, rtol=1e-4, atol=1e-5)
    absent = rule_with({"tokens.weight": -0.5}, tokens=Tokens())
    elsewhere = rule_with({"moved.weight": 3.0}, (7,), moved=Info(key="moved"))
    joined = RewardRule(0.0, numbers={**absent.numbers, **elsewhere.numbers}, parts=absent.parts + elsewhere.parts)
    np.testing.assert_array_equal(sums_of(joined)[0], sums_of(absent)[0])


def test_totals_that_a_normalized_sum_would_confuse_stay_apart():
    # Two rewards of (0, 1) and of (0, 2): the sums of a group normalized together are the same in both cases.
    one, two = jnp.array([0.0, 1.0, 0.0, 1.0]), jnp.array([0.0, 0.0, 0.0, 1.0])
    turn = CUT_OFF.turn
    empty = jnp.zeros(turn.reward.shape)

    def advantages(second):
        trajectory = CUT_OFF.replace(
            turn=turn.replace(
                reward=empty.at[:, 0].set(jnp.tile(one, GROUPS)),
                info={"moved": empty.at[:, 0].set(jnp.tile(second, GROUPS))},
            )
        )
        rule = rule_with(moved=Info(key="moved"))
        groups = groups_of(trajectory, total_returns(trajectory, rule), GROUP_SIZE)
        return np.asarray(_normalized_sums(trajectory, groups, rule))[0]

    alike = advantages(one)  # totals 0, 2, 0, 2
    assert alike[1] == alike[3]
    apart = advantages(two)  # totals 0, 1, 0, 2
    assert apart[0] < apart[1] < apart[3]
    np.testing.assert_allclose(apart[3], np.sqrt(0.75) + 1.5, rtol=1e-4)


def test_what_is_measured_of_a_part():
    rule = rule_with({"tokens.weight": -0.5}, (1,), tokens=Tokens(), moved=Info(key="moved"))
    groups = groups_of(EPISODES_OF_TWO, total_returns(EPISODES_OF_TWO, rule), GROUP_SIZE)
    found = {name: float(x.value) for name, x in measure(EPISODES_OF_TWO, groups, ("a", "b"), rule).items()}
    of_turns = LENGTH, EPISODES_OF_TWO.turn.reward, MOVED
    tokens, reward, moved = (np.sum(np.asarray(x), axis=1).reshape(GROUPS, -1) for x in of_turns)
    solved, has = np.any(SUCCESS, axis=1).reshape(GROUPS, -1), TASK[::GROUP_SIZE] == 1
    assert found["reward/tokens_mean"] == pytest.approx(tokens[has].mean())
    assert found["reward/environment_mean"] == pytest.approx(reward.mean(), rel=1e-5)
    assert found["reward/tokens_std"] == pytest.approx(np.std(tokens[has], axis=1, ddof=1).mean(), rel=1e-5)
    size = 0.5 * tokens * has[:, None]
    assert found["reward/tokens_share"] == pytest.approx(
        (size.sum(1) / (size + np.abs(reward) + np.abs(moved) * has[:, None]).sum(1)).mean(), rel=1e-5
    )
    pairs = [
        np.sign(x[i] - x[j])
        for x, y, of in zip(moved, solved, has)
        for i in range(GROUP_SIZE)
        for j in range(GROUP_SIZE)
        if of and y[i] and not y[j]
    ]
    assert found["reward/moved_success"] == pytest.approx(np.mean(pairs))
    assert abs(np.mean(pairs)) > 0.1


def test_an_update_learns_from_normalized_sums_and_skips_what_was_truncated():
    part, rule = (NamedPart("tokens", Tokens().untraced()),), rule_with({"tokens.weight": -0.5}, tokens=Tokens())
    groups = groups_of(CUT_OFF, total_returns(CUT_OFF, rule), GROUP_SIZE)
    scores = np.asarray(_normalized_sums(CUT_OFF, groups, rule)).reshape(-1, 1)
    options = {"advantage": Grpo(normalize_by_std=False), "model": NO_CRITIC}
    rewarded = CUT_OFF.replace(turn=CUT_OFF.turn.replace(reward=jnp.asarray(np.where(LAST, scores, 0.0), jnp.float32)))
    numbers = settings(format_penalty=0.0, rewards__tokens__weight=-0.5)
    state, found = learn(
        CUT_OFF, numbers=numbers, reward_parts=part, normalize_rewards="group", skip_truncated=("turns",), **options
    )
    kept = np.asarray(CUT_OFF.truncation) == 0
    assert 0 < kept.sum() < EPISODES
    assert float(found["update/trained_tokens"]) == LENGTH[kept].sum()
    returns = np.asarray(total_returns(CUT_OFF, rule))
    assert float(found["train/return"]) == pytest.approx(returns.mean(), rel=1e-5)
    expected, _ = learn(rewarded, numbers=settings(format_penalty=0.0), skip_truncated=("turns",), **options)
    assert_close(state.params, expected.params, 1e-4)
