"""Every check catches the fault that it names and no other; references and searches agree with the exact oracles."""

import functools
import json
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_lock import CAUGHT_BY, LIMIT, LOCK, ODD, SPECIAL, Fault, Lock, PlainLock, failures, params_of, result, solve

from envs_jax import checks, registry
from envs_jax.checks import MOST_SEEDS, check, check_registered, evidence, reachable
from envs_jax.checks.play import fingerprint, in_batches, joined, key_of, noise_key
from envs_jax.checks.policy_rules import goal_reachable
from envs_jax.checks.rules import RULES, absorbing_end, observation, reward_range, success_terminates
from envs_jax.reference import Floors, reference_of_plans

SEEDS = 96
EVERYTHING = (jnp.float32(-jnp.inf), jnp.float32(jnp.inf))


def report_on(fault, **options):
    return check(LOCK, params_of(fault), seeds=SEEDS, solve=solve, **options)


kept_report = functools.cache(report_on)


def test_a_lock_without_fault_passes_everything():
    report = kept_report(Fault.NONE)
    assert {found.name: found.status for found in report.results} == {rule.__name__: "pass" for rule in RULES}
    assert report.status == "pass"
    (row,) = report.difficulty
    assert (row["length"], row["levels"]) == (4, SEEDS)
    assert row["random"] == result(report, "random_floor").numbers["success"]


@pytest.mark.parametrize("fault", CAUGHT_BY)
def test_a_fault_is_caught_by_the_check_that_names_it(fault):
    report = kept_report(Fault[fault])
    assert failures(report) == [CAUGHT_BY[fault]]
    failed = result(report, CAUGHT_BY[fault])
    assert failed.reason
    assert fault in ("PAYS_NOTHING", "ALWAYS_STARTS_ALIKE") or failed.counterexample["seed"] >= 0
    json.dumps(report.as_json(), allow_nan=False)


def test_what_is_declared_counts():
    for fault, declared, failed in (
        ("PAYS_MISTAKES", {}, ["reward_follows_success", "reference"]),
        ("ALWAYS_STARTS_ALIKE", {"single_start": True}, []),
        ("EQUAL_ACTIONS_WIN", {}, ["constant_floor", "repeat_last_floor"]),
        ("EQUAL_ACTIONS_WIN", {"floors": Floors(constant=1.0)}, ["repeat_last_floor"]),
        ("NONE", {"floors": Floors(random=0.01)}, ["random_floor"]),
        ("NONE", {"floors": Floors(gap=0.99)}, ["random_floor"]),
    ):
        assert failures(report_on(Fault[fault], **declared)) == failed, (fault, declared)


def test_the_best_of_many_constant_actions_is_played_on_all_seeds(monkeypatch):
    """Three episodes of each are too few to show that one wins more often than declared."""
    monkeypatch.setattr(evidence, "EVERY_SEED_ACTIONS", 0)
    monkeypatch.setattr(evidence, "FEWEST_SEEDS", 3)
    report = report_on(Fault.SAME_ACTION_WINS, floors=Floors(constant=0.3))
    assert failures(report) == ["constant_floor"]
    numbers = result(report, "constant_floor").numbers
    assert (numbers["episodes_each"], numbers["episodes"], numbers["success"]) == (3, SEEDS, 1.0)
    monkeypatch.setattr(evidence, "FEWEST_SEEDS", SEEDS)
    assert failures(report_on(Fault.SAME_ACTION_WINS, floors=Floors(constant=1.0))) == []


@pytest.mark.parametrize("fault", ["PAYS_TOO_MUCH", "SAYS_UNKNOWN_PIECE", "GOES_ON"])
def test_a_counterexample_can_be_played_again(fault):
    params, step = params_of(Fault[fault]), jax.jit(LOCK.step_env)
    case = result(kept_report(Fault[fault]), CAUGHT_BY[fault]).counterexample
    _, state = LOCK.reset_env(key_of(case["seed"]), params)
    for number, action in enumerate(case["actions"]):
        action = jnp.int32(LOCK.actions.index(action))
        _, state, reward, *_ = step(noise_key(case["seed"], number), state, action, params)
    flaw = {
        "PAYS_TOO_MUCH": reward > 1,
        "SAYS_UNKNOWN_PIECE": LOCK.describe(state, params).max() >= len(LOCK.pieces),
        "GOES_ON": LOCK.success(state, params) & ~state.terminated,
    }
    assert flaw[fault]


def test_the_search_finds_the_levels_that_cannot_be_opened():
    def knows_nothing(*arguments):
        return solve(*arguments)._replace(lengths=np.full(SEEDS, -1, np.int32))

    report = check(LOCK, params_of(Fault.CANNOT_BE_OPENED), seeds=SEEDS, solve=knows_nothing)
    assert failures(report) == ["goal_reachable"]
    seed = result(report, "goal_reachable").counterexample["seed"]
    assert LOCK.reset_env(jax.random.key(seed), LOCK.default_params)[1].code == SPECIAL
    assert result(report, "reference").status == "skipped"


def test_flaws_of_start_states_and_of_the_search_are_told():
    options = {"solve": solve, "solved_levels": None, "single_start": False, "progress": print}
    sound = evidence.gather(LOCK, LOCK.default_params, seeds=SEEDS, limit=LIMIT, floors=Floors(), **options)
    assert reward_range(sound._replace(span=None)).status == "skipped"
    row, texts = np.arange(SEEDS) == 3, sound.start_texts.copy()
    texts[3, 1] = 0
    for rule, flaw, found in (
        (success_terminates, {"start_flaws": sound.start_flaws | {"not_terminated": row}}, "solved at the start"),
        (observation, {"start_flaws": sound.start_flaws | {"bad_text": row}}, sound.start_texts[3].tolist()),
        (observation, {"start_texts": texts}, "2 times the piece 'Code '"),
    ):
        case = rule(sound._replace(**flaw)).counterexample
        assert case == {"seed": 3, "policy": None, "actions": [], "found": found}
    env = type("Surrogates", (Lock,), {"pieces": ("\ud800", *Lock.pieces[1:])})()
    assert observation(sound._replace(env=env)).reason == "an observation is no Unicode text"
    search = sound.search._replace(broken=sound.search.broken | {"changed": (5, (0, 1))})
    case = absorbing_end(sound._replace(search=search)).counterexample
    assert (case["seed"], case["policy"], case["actions"]) == (5, "search", ["Zero", "One"])
    # A search that a policy refutes, because equal hashes are followed by different situations, proves nothing.
    blind = sound.search._replace(distance=np.full(SEEDS, -1, np.int32))
    search, why = evidence._not_refuted(blind, [*sound.runs.values()])
    assert not search.complete.any()
    assert why
    unknown = sound._replace(search=search, no_search=why, reference=None)
    assert goal_reachable(unknown).status == "skipped"
    assert goal_reachable(unknown._replace(search=blind)).status == "fail"


@pytest.mark.parametrize("options", [{"seeds": 0}, {"seeds": MOST_SEEDS + 1}, {"limit": 9}, {"limit": 0}])
def test_numbers_out_of_range_are_refused(options):
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=f"{name} is {value}; expected 1 to"):
        check(LOCK, LOCK.default_params, **options)


def test_a_registered_environment_is_checked_with_what_it_declares(monkeypatch):
    own = registry.Registry({})
    own.register("Lock", lambda: (LOCK, LOCK.default_params), solve=solve, floors=Floors(random=0.01))
    monkeypatch.setattr(checks, "registry", own)
    report = check_registered("Lock", seeds=SEEDS)
    assert failures(report) == ["random_floor"]
    assert result(report, "reference").status == "pass"


def test_the_search_stops_after_enough_situations_and_gives_up_large_levels(monkeypatch):
    seeds = np.arange(SEEDS, dtype=np.uint32)
    states = jax.device_get(jax.vmap(lambda seed: LOCK.reset_env(key_of(seed), LOCK.default_params)[1])(seeds))
    search = functools.partial(reachable.search, LOCK, span=EVERYTHING, seeds=seeds, starts=states)
    monkeypatch.setattr(reachable, "SITUATIONS", 20)
    found = search(params=LOCK.default_params)
    assert found.distance.tolist() == [4] * reachable.TOGETHER
    assert found.situations.tolist() == [5] * reachable.TOGETHER
    assert found.transitions == reachable.TOGETHER * 2 * 4 * reachable.FEW_DRAWS
    assert found.rewards == (0.0, 1.0)
    short = search(params=LOCK.default_params.replace(max_steps_in_episode=jnp.int32(3)))
    assert short.complete.all()
    assert (short.distance[:2].tolist(), short.situations[:2].tolist()) == ([-1, -1], [4, 4])
    monkeypatch.setattr(reachable, "SITUATIONS_OF_LEVEL", 4)
    found = search(params=LOCK.default_params)
    assert not found.complete.any()
    assert found.distance.tolist() == [-1] * reachable.TOGETHER


def test_every_leaf_counts_in_a_fingerprint():
    tree = {"a": jnp.arange(3), "b": jnp.float32(1), "c": jax.random.key(0), "d": jnp.bool_(False)}
    others = {"a": jnp.array([0, 2, 1]), "b": jnp.float32(1 + 1e-6), "c": jax.random.key(1), "d": jnp.bool_(True)}
    for floats in (True, False):
        hashed = jax.jit(functools.partial(fingerprint, floats=floats))
        changed = [name for name in tree if (hashed(tree | {name: others[name]}) != hashed(tree)).any()]
        assert changed == (["a", "b", "c", "d"] if floats else ["a", "c", "d"])


def test_states_that_hold_keys_can_be_joined_and_plans_are_padded():
    found = joined([{"key": jax.random.split(jax.random.key(0), 2), "time": np.arange(2)}] * 2)
    assert found["key"].shape == (4,)
    assert found["time"].tolist() == [0, 1, 0, 1]
    found = reference_of_plans([np.array([1, 0], np.int32), None, np.array([], np.int32)], np.ones(3, bool))
    assert found.actions[..., 0].tolist() == [[1, 0], [-1, -1], [-1, -1]]
    assert found.lengths.tolist() == [2, -1, 0]


@pytest.mark.parametrize("count", [1, 4, 10])
def test_batches_that_are_computed_at_the_same_time_keep_their_order(count):
    rows = np.arange(count), {"squares": np.arange(count) ** 2}
    called, last = [], threading.Event()

    def function(numbers, more):
        called.append(len(numbers))
        if numbers[0] == 8:
            last.set()
        if numbers[0] == 4:
            assert last.wait(60), "the next batch begins before this one ends"
        return numbers, more["squares"] + 1

    found = in_batches(function, 4, *rows)
    assert np.array_equal(found[0], rows[0])
    assert np.array_equal(found[1], rows[1]["squares"] + 1)
    assert called == [4] * -(-count // 4), "batches have one size, so that one program is enough"


def test_a_range_of_rewards_is_widened_by_what_sums_are_rounded_by_and_no_more():
    low, high = evidence._widened(-2.0, 3.0)
    assert -2.001 < float(low) < -2.0 < 3.0 < float(high) < 3.001
    assert [float(x) for x in evidence._widened(float("-inf"), float("inf"))] == [float("-inf"), float("inf")]


def test_a_path_has_every_action_from_the_start():
    """Node 1 is reached from 0 by action 3, node 2 from 1 by action 5."""
    assert reachable._path([(0, -1), (0, 3), (1, 5)], 2) == (3, 5)
    assert reachable._path([(0, -1)], 0) == ()


@pytest.mark.nightly
def test_locks_that_are_odd_but_right_pass():
    """Too few seeds to tell whether episodes start alike, or whether rewards follow success."""
    situations, transitions, few = {}, {}, ("different_starts", "reward_follows_success")
    for odd in ODD:
        report = check(PlainLock(), params_of(Fault[odd]), seeds=24)
        assert failures(report) == []
        assert {result(report, name).status for name in few} == {"skipped"}
        found = result(report, "goal_reachable")
        assert (found.status, found.numbers["random_transitions"]) == ("pass", odd == "STICKS")
        optimal = None if odd == "STICKS" else 1.0
        assert result(report, "random_floor").numbers.get("optimal") == optimal, "where no solution is known"
        situations[odd], transitions[odd] = found.numbers["situations"], found.numbers["transitions"]
    assert situations["HIDES"] < situations["COUNTS_DOWN"], "time tells situations apart in the text alone"
    assert transitions["STICKS"] > 2 * transitions["HIDES"], "more draws where transitions are random"
