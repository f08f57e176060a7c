"""Rates of episodes that are given by hand, and differences of two runs."""

from unittest import mock

import numpy as np
import pytest

from agentrl_jax.evaluate import against, results
from agentrl_jax.evaluate.results import Played, gap_closed, rates
from agentrl_jax.evaluate.selectors import BestOf
from agentrl_jax.evaluate.statistics import mean_interval, paired_interval, pass_at, success_interval
from envs_jax.budget import Baselines

SUCCESS = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]], bool)
GREEDY = np.array([True, False, True, True])
FAMILIES = ["a", "a", "b", "b"]


def played(judged=()):
    shape = SUCCESS.shape
    turns, tokens = np.full(shape, 2), np.arange(12).reshape(shape)
    return Played(list("wxyz"), GREEDY, SUCCESS, SUCCESS * 2.0, turns, tokens, list(judged), None, None)


def test_rates_and_outcomes():
    lines = Baselines(np.full(4, 0.25), np.array([1, 1, 1, 0.5]), null=np.zeros(4))
    found = rates(played(), lines, FAMILIES)
    assert found["success"] == success_interval(SUCCESS.mean(axis=1))
    assert found["success_greedy"] == success_interval(GREEDY)
    assert (found["mean_turns"], found["mean_tokens"]) == (2.0, 5.5)
    assert found["return"]["mean"] == pytest.approx(1.0)
    parts = ("samples", "categories", "optimal")
    assert [found["outcomes"][part] for part in parts] == [SUCCESS.astype(int).tolist(), FAMILIES, [1, 1, 1, 0.5]]
    assert list(found["pass_at"]) == list(found["pass_all"]) == ["1", "2", "3"]
    assert found["gap_closed"] == pytest.approx((0.5 - 0.25) / (0.875 - 0.25))
    assert found["categories"]["a"]["success"] == success_interval(SUCCESS[:2].mean(axis=1))
    assert rates(played(), None)["outcomes"].keys() == {"success", "success_greedy", "samples"}
    assert gap_closed(0.5, 0.4, 0.4) is None
    assert [results.powers(k) for k in (1, 2, 5, 8)] == [[1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8]]


def test_clusters_widen_every_interval_of_all_levels():
    lines = Baselines(np.array([0.1, 0.2, 0.3, 0.3]), np.array([1, 1, 1, 0.5]), null=np.zeros(4))
    found = rates(played(), lines, FAMILIES, clusters=True)
    mean = SUCCESS.mean(axis=1)
    assert found["success"] == success_interval(mean, clusters=FAMILIES)
    assert found["return"] == mean_interval(2 * mean, clusters=FAMILIES)
    assert found["pass_at"]["2"]["clusters"] == 2
    for name in ("random", "null", "optimal"):
        assert found[name] == success_interval(getattr(lines, name), clusters=FAMILIES)
    assert found["categories"]["a"]["success"] == success_interval(mean[:2]), "one cluster alone has no such interval"


def test_best_of_reads_what_was_judged_sample_by_sample():
    # Sample 2 has the highest score on all levels but the last.
    judged, selector = [[0.0, 0.0, 0.0, 5.0], [1.0] * 4, [2.0] * 4], BestOf("logprob", lambda episodes: [])
    found = rates(played(judged), None, best=selector, best_of=(1, 3))["best_of"]
    assert found["selector"] == "logprob"
    assert found["success"]["1"] == success_interval(SUCCESS.mean(axis=1))
    assert found["success"]["3"] == success_interval([1.0, 0.0, 1.0, 0.0])
    oracle = rates(played(judged), None, best=BestOf("oracle", lambda episodes: []), best_of=(2,))["best_of"]
    assert oracle["success"]["2"] == success_interval(pass_at(SUCCESS, 2))


@pytest.mark.parametrize("options", [{}, {"clusters": True}, {"panel": "bandit-v1"}])
def test_differences_of_two_runs(monkeypatch, options):
    same = {"env": "BabyAI", "episodes": 4, "seed": 3, "temperature": 0.5, "levels_digest": "x"}
    outcomes = {run: {"success_greedy": [1, 1, 1, 1], "categories": FAMILIES} for run in ("first", "second")}
    outcomes["first"]["success"], outcomes["second"]["success"] = [1, 0, 1, 1], [0, 0, 1, 0]
    evaluate_run = mock.Mock(side_effect=lambda run, **given: same | {"outcomes": outcomes[run]})
    monkeypatch.setattr(against, "evaluate_run", evaluate_run)
    monkeypatch.setattr(against, "_check_same_task", lambda run, other, **task: None)
    found = against.evaluate_against("first", "second", **options)
    clusters = FAMILIES if "clusters" in options else None
    assert found["difference"] == paired_interval([1, 0, 1, 1], [0, 0, 1, 0], clusters=clusters)
    given = evaluate_run.call_args.kwargs
    assert given["temperature"] == 0.5
    assert ("seed" in given) == ("panel" not in options), "a panel fixes the levels already"
