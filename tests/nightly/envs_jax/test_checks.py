"""Environments that are odd but right pass all checks."""

from broken_lock import ODD, Fault, PlainLock, failures, params_of, result

from envs_jax.checks import check


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
