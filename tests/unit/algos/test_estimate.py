import functools
from types import SimpleNamespace

import algos_oracles
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl_jax.algos.estimate import ESTIMATORS, AdvantageInputs, estimate
from agentrl_jax.config.advantages import Advantage, Sum, WeightedTerm
from agentrl_jax.config.fields import OWN, is_own
from agentrl_jax.config.keys import kind_of, sections_of
from agentrl_jax.errors import BadValue

GROUPS, GROUP_SIZE, TURNS, SAID = 3, 4, 2, 3
EPISODES, LENGTH = GROUPS * GROUP_SIZE, TURNS * SAID
KINDS = {kind_of(kind): kind for kind in sections_of(Advantage)}
NAMES = tuple(ESTIMATORS)
NUMBERS = dict.fromkeys(("gamma", "lam", "turn_gamma"), 0.9) | {"step_weight": 0.5, "history_power": 1.0}
NUMBERS |= {"0.weight": 1.0, "0.gamma": 0.9, "0.lam": 0.9}


def test_every_kind_of_advantage_has_its_function():
    assert KINDS.keys() - {OWN} == {kind for kind in ESTIMATORS if not is_own(kind)}


@functools.cache
def program(rule):
    return jax.jit(lambda evidence: estimate(evidence, rule, NUMBERS)[0])


@functools.partial(jax.jit, static_argnums=1)
def every_kind(evidence, rules, numbers):
    return [estimate(evidence, rule, numbers) for rule in rules]


def advantages(rule, evidence):
    return np.asarray(program(rule)(evidence))


def rule_of(name, **changes):
    return KINDS[name](whiten=False, **changes)


@st.composite
def evidence(draw):
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    length = random.integers(1, SAID + 1, (EPISODES, TURNS)) * (np.arange(TURNS) < random.integers(1, 3, (EPISODES, 1)))
    slot = np.arange(LENGTH)
    mask = slot % SAID < length[:, slot // SAID]
    last = np.where(length > 0, np.arange(TURNS) * SAID + length - 1, -1)
    reward = np.where(length > 0, random.integers(-8, 9, (EPISODES, TURNS)) / 8, 0.0).astype(np.float32)
    placed = np.zeros((EPISODES, LENGTH), np.float32)
    for episode, turn in zip(*np.nonzero(length)):
        placed[episode, last[episode, turn]] = reward[episode, turn]
    return AdvantageInputs(
        rewards=placed,
        values=random.normal(size=mask.shape).astype(np.float32),
        mask=mask,
        turn=np.broadcast_to(slot // SAID, mask.shape),
        turn_end=(last[:, :, None] == slot).any(axis=1),
        scores=reward.sum(axis=1).reshape(GROUPS, GROUP_SIZE),
        valid=random.random((GROUPS, GROUP_SIZE)) < 0.8,
        baseline=(random.integers(-8, 9, GROUPS) / 8).astype(np.float32),
        turn_rewards=reward,
        state=random.integers(0, 3, (EPISODES, TURNS, 1)).repeat(2, axis=2).astype(np.uint32),
        turn_mask=length > 0,
    )


@pytest.mark.parametrize("name", NAMES)
@algos_oracles.PROPERTY
@given(evidence())
def test_nothing_is_learned_from_what_was_not_sampled(name, e):
    found = advantages(rule_of(name), e)
    assert not found[~e.mask].any()
    dirty = e.replace(values=np.where(e.mask, e.values, np.nan), turn_end=e.turn_end | ~e.mask)
    np.testing.assert_array_equal(advantages(rule_of(name), dirty), found)


def test_other_kinds_are_refused():
    inputs = AdvantageInputs(**dict.fromkeys(AdvantageInputs.__dataclass_fields__, np.zeros(())))
    with pytest.raises(BadValue) as refused:
        estimate(inputs, SimpleNamespace(kind="own"), NUMBERS)
    assert (refused.value.key, refused.value.value) == ("estimator", "own")


@algos_oracles.PROPERTY
@given(evidence())
def test_weights_of_groups_and_rows_multiply(e):
    plain = advantages(rule_of("rloo"), e)
    found = advantages(rule_of("rloo", spread_weighted=True, length_weighted=True), e)
    std = np.array([row[kept].std(ddof=1) if kept.sum() > 1 else 0.0 for row, kept in zip(e.scores, e.valid)])
    lengths = e.mask.sum(axis=1)
    factor = np.repeat(std / (std.max() + 1e-6), GROUP_SIZE) * lengths.mean() / lengths
    np.testing.assert_allclose(found, plain * factor[:, None], atol=1e-5)


SUM = Sum(terms=(WeightedTerm(rule=KINDS["rloo"]()), WeightedTerm(rule=KINDS["gae"]())))


@algos_oracles.PROPERTY
@given(evidence())
def test_one_term_has_the_bits_of_its_kind(e):
    found = program(rule_of("sum"))(e)  # gae with weight 1
    np.testing.assert_array_equal(np.asarray(found), advantages(rule_of("gae"), e))


@algos_oracles.PROPERTY
@given(evidence())
def test_every_kind_is_computed_by_its_rule(e):
    n = SimpleNamespace(gamma=0.9, lam=0.8, turn_gamma=0.7, step_weight=0.5, history_power=2.0)
    steps, of_turns = (e.rewards, e.values, e.mask), (e.turn_mask & e.valid.reshape(-1, 1))
    group = np.repeat(np.arange(GROUPS), GROUP_SIZE)
    later = sum(np.pad(e.turn_rewards, ((0, 0), (0, t)))[:, t:] * n.turn_gamma**t for t in range(TURNS))

    def of_episodes(of_group):
        found = np.zeros(e.scores.shape)
        for row, kept in enumerate(e.valid):
            found[row, kept] = of_group(e.scores[row, kept])
        return np.repeat(found.reshape(-1, 1), LENGTH, axis=1)

    def gigpo(history):
        states = [list(map(tuple, turns)) for turns in e.state.tolist()]
        turns = algos_oracles.turn_advantages(later, states, group, of_turns, history, n.history_power, True)
        return of_episodes(lambda x: algos_oracles.normalized(x, True)) + 0.5 * turns.repeat(SAID, axis=1)

    expected = {
        rule_of("gae"): algos_oracles.gae(*steps, n.gamma, n.lam),
        rule_of("turn_gae"): algos_oracles.turn_gae(*steps, e.turn_end, n.gamma, n.lam),
        rule_of("bi_level_gae"): algos_oracles.bi_level_gae(*steps, e.turn_end, n.gamma, n.lam, n.turn_gamma),
        rule_of("reward_to_go"): (algos_oracles.gae(e.rewards, 0 * e.values, e.mask, n.gamma, 1.0)[0], 0.0),
        rule_of("grpo"): (of_episodes(lambda x: algos_oracles.normalized(x, True)), 0.0),
        rule_of("grpo", normalize_by_std=False): (of_episodes(lambda x: algos_oracles.normalized(x, False)), 0.0),
        rule_of("rloo"): (of_episodes(algos_oracles.leave_one_out), 0.0),
        rule_of("remax"): ((e.valid * (e.scores - e.baseline[:, None])).reshape(-1, 1).repeat(LENGTH, axis=1), 0.0),
        rule_of("gigpo"): (gigpo(0), 0.0),
        rule_of("gigpo", history=1): (gigpo(1), 0.0),
        SUM: tuple(np.array([2.0, 1.0])[:, None, None] * algos_oracles.gae(*steps, n.gamma, n.lam)),
    }
    expected[SUM][0][...] -= 0.5 * of_episodes(algos_oracles.leave_one_out)
    of_sum = {"0.weight": -0.5, "1.weight": 2.0, "1.gamma": n.gamma, "1.lam": n.lam}
    for (rule, (advantage, target)), found in zip(expected.items(), every_kind(e, tuple(expected), vars(n) | of_sum)):
        np.testing.assert_allclose(found[0], np.where(e.mask, advantage, 0.0), atol=3e-5, err_msg=rule.kind)
        np.testing.assert_allclose(found[1], np.broadcast_to(target, e.mask.shape), atol=3e-5, err_msg=rule.kind)
