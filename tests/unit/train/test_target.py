"""The end of a run by its validations."""

import math

import numpy as np
import pytest
import scipy.stats
from refusing import refusal

from agentrl_jax.config import TrainConfig
from agentrl_jax.config.schema import BestConfig, StopConfig
from agentrl_jax.train.target import Target, lower_bound


def rows(successes, episodes=100, **more):
    found = []
    for i, success in enumerate(successes, 1):
        of_row = {} if success is None else {"validation/success": success, "validation/episodes": episodes}
        found.append({"stage": "rl", "iteration": i, **of_row, **{name: x[i - 1] for name, x in more.items()}})
    return found


def config(**stop):
    best = stop.pop("best", BestConfig())
    return TrainConfig(stop=StopConfig(**stop), best=best)


def ends(settings, of_run):
    """The iteration that ends a run, and why; the same where another process goes on from any row."""
    target, end = Target(settings, []), None
    for number, row in enumerate(of_run, 1):
        target.see(row)
        assert Target(settings, of_run[:number]).reached == target.reached
        if target.reached and end is None:
            end = number, target.reached
    return end


@pytest.mark.parametrize(("successes", "episodes"), [(0, 10), (7, 10), (10, 10), (90, 100)])
def test_the_bound_is_that_of_clopper_and_pearson(successes, episodes):
    interval = scipy.stats.binomtest(successes, episodes, alternative="greater").proportion_ci(0.95, "exact")
    assert lower_bound(successes, episodes, 0.05) == pytest.approx(interval.low, abs=1e-12)


def test_success_ends_a_run_once_it_is_sure():
    assert ends(config(at=0.8), rows([0.5, None, 0.85, 0.8, None, 0.93])) == (6, "target")
    assert ends(config(), rows([1.0] * 5)) is None
    # The same success is less sure in a later validation, whose level is stricter.
    sure = next(n for n in range(100) if lower_bound(n, 100, 0.05 / 2) >= 0.8) / 100
    assert ends(config(at=0.8), rows([sure])) == (1, "target")
    assert ends(config(at=0.8), rows([0.0, sure])) is None
    assert ends(config(at=0.8, alpha=0.3), rows([0.0, sure])) == (2, "target")


def test_a_policy_below_the_target_seldom_ends_a_run():
    """As good as the target itself: by chance in at most 5 of 100 runs of 40 validations."""
    draw, ended = np.random.default_rng(0), 0
    for _ in range(200):
        target = Target(config(at=0.8), [])
        for row in rows(draw.binomial(64, 0.8, 40) / 64, episodes=64):
            target.see(row)
        ended += bool(target.reached)
    assert ended / 200 <= 0.05


def test_a_run_ends_where_nothing_was_better_for_a_while():
    assert ends(config(patience=2), rows([0.1, 0.3, None, 0.3, 0.2, 0.9])) == (5, "patience")
    assert ends(config(patience=2), rows([0.1, 0.2, 0.1, 0.3, 0.1, 0.1])) == (6, "patience")
    lowest = BestConfig(metric="actor/kl", mode="min")
    kl = [3.0, 2.0, 1.0, 2.0, 2.0]
    assert ends(config(patience=2, best=lowest), rows([0.5] * 5, **{"actor/kl": kl})) == (5, "patience")
    assert ends(config(patience=2), rows([0.5] * 5, **{"actor/kl": kl})) == (3, "patience")


def test_the_score_is_higher_where_the_metric_is_better():
    target = Target(config(best=BestConfig(metric="actor/kl", mode="min")), [])
    low, high = rows([0.5, 0.5], **{"actor/kl": [1.0, 2.0]})
    assert target.score(low) > target.score(high)
    assert target.score({"stage": "rl", "actor/kl": 1.0}) is None
    assert target.score(low | {"actor/kl": math.nan}) is None
    error = refusal(target.score, rows([0.5])[0])
    assert (error.key, error.value) == ("train.best.metric", "actor/kl")
