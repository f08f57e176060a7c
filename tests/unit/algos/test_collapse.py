import pytest
from alarms import raised

from agentrl_jax.algos import collapse
from agentrl_jax.algos.collapse import Alarm, examine


def alarm(rule, limit, patience=2, **options):
    options = {"start": 3, **options}
    return Alarm("made_up", "x", "unit", rule, limit, patience, False, "about", "source", **options)


def rows(values, **columns):
    return [
        {"iteration": i, "x": value, **{name: column[i - 1] for name, column in columns.items()}}
        for i, value in enumerate(values, 1)
    ]


@pytest.mark.parametrize(
    ("rule", "limit", "usual", "at_limit", "beyond"),
    [
        ("above", 1.0, 0.5, 1.0, 1.25),
        ("falls", 0.5, 2.0, 1.0, 0.75),
        ("rises", 3.0, 2.0, 6.0, 6.5),
        ("drifts", 2.0, 2.0, 4.0, 4.5),
        ("drifts", 2.0, 2.0, 1.0, 0.75),
        ("spikes", 4.0, 2.0, 8.0, 8.5),
    ],
)
def test_a_streak_beyond_the_limit_raises_it(rule, limit, usual, at_limit, beyond):
    made_up = alarm(rule, limit)
    assert examine(made_up, rows([usual] * 4 + [at_limit] * 4)).raised == ()
    found = examine(made_up, rows([usual] * 4 + [beyond, usual, beyond, beyond, beyond, usual]))
    assert (found.raised, found.began, found.lasts) == ((8, 9), 7, False)
    assert (found.seen, found.reference) == (beyond, limit if rule == "above" else usual)
    assert (found.iterations, found.values[:4]) == (tuple(range(1, 11)), (usual,) * 4)
    assert examine(made_up, rows([usual] * 4 + [beyond] * 2)).lasts


def test_the_first_values_are_the_reference():
    assert examine(alarm("falls", 0.5), rows([1.0, 2.0, 6.0, 1.4, 1.4])).reference == 3.0
    assert examine(alarm("falls", 0.5, patience=1), rows([9.0, 1.0, 2.0, 2.0, 1.9])).raised == (5,)
    assert examine(alarm("rises", 1.0, patience=1), rows([-3.0, 0.0, 0.0, 5.0])).raised == ()
    assert sorted(published.patience for published in collapse.ALARMS) == [1, 3, 3, 5, 5, *[10] * 8]
    noise = alarm("falls", 0.5, least_start=0.25)
    assert examine(noise, rows([0.25] * 3 + [0.0] * 4)).raised == ()
    assert examine(noise, rows([0.26] * 3 + [0.0] * 4)).raised == (5, 6, 7)


def test_a_spike_is_compared_with_the_twenty_values_before():
    values = [9.0] * 20 + [1.0] * 21 + [4.5]
    found = examine(alarm("spikes", 4.0, patience=1), rows(values))
    assert (found.raised, found.reference) == ((42,), 1.0)


def test_rows_without_the_metric_are_passed_over():
    some = rows([2.0, None, 2.0, 2.0, float("nan"), 0.5, None, 0.5])
    some += [{"x": 0.1}, {"iteration": 10, "x": "no number"}]
    found = examine(alarm("falls", 0.5), some)
    assert (found.iterations, found.values, found.raised) == ((1, 3, 4, 6, 8), (2.0, 2.0, 2.0, 0.5, 0.5), (8,))


@pytest.mark.parametrize("rule", ["significant_fall", "significant_rise"])
def test_a_significant_change_lasts_until_values_are_back(rule):
    rise = rule == "significant_rise"
    values = [0.4, 0.42] * 10 + [0.0] * 8 + [0.4] * 8
    values = [1.0 - x for x in values] if rise else values
    found = examine(alarm(rule, 0.9 if rise else 0.1, patience=4, longest=6), rows(values))
    assert found.began == 21
    assert found.raised[0] in range(24, 29)
    assert found.raised == tuple(range(found.raised[0], found.raised[-1] + 1))
    assert 28 <= found.raised[-1] < 33
    assert found.seen == pytest.approx(1.0 if rise else 0.0)
    assert found.reference == pytest.approx(0.59 if rise else 0.41, abs=0.01)


def test_a_relative_fall_is_compared_with_the_start():
    """Half of the mean of the first values is the bound; failed episodes are none in training."""
    values = [0.4] * 20 + [0.15] * 20
    made_up = alarm(
        "significant_fall", 0.5, patience=4, longest=8, start=10, relative=True, episodes="rollout/episodes"
    )
    counts = {"rollout/episodes": [1000.0] * 40}
    found = examine(made_up, rows(values, **counts))
    assert (found.began, found.reference, found.seen) == (21, pytest.approx(0.4), pytest.approx(0.15))
    assert examine(made_up, rows([0.4] * 20 + [0.21] * 20, **counts)).raised == ()
    failed = {"rollout/failed": [999.0] * 40}
    assert examine(made_up, rows(values, **counts, **failed)).began is None
    of_validation = alarm("significant_fall", 0.5, patience=4, longest=8, relative=True, episodes="validation/episodes")
    columns = {"validation/episodes": [1000.0] * 40, **failed}
    assert examine(of_validation, rows(values, **columns)).began == 21


def test_independent_episodes_need_no_test_of_values():
    """Validations that vary by more than chance: their counts decide alone, if they are known for every value."""
    some = rows([0.0, 0.8] * 10 + [0.0] * 5, n=[1000.0] * 25)
    options = {"patience": 5, "longest": 5, "episodes": "n"}
    assert examine(alarm("significant_fall", 0.5, independent=True, **options), some).raised == (23, 24, 25)
    assert examine(alarm("significant_fall", 0.5, **options), some).raised == ()
    del some[3]["n"]
    assert examine(alarm("significant_fall", 0.5, independent=True, **options), some).raised == ()


def test_what_was_bad_first():
    values = [2.0] * 3 + [0.1] * 3
    assert examine(alarm("falls", 0.5), rows(values)).first_bad == 3
    of_validation = Alarm("a", "validation/x", "unit", "falls", 0.5, 2, False, "about", "source", start=3)
    found = examine(of_validation, [{"iteration": i, "validation/x": x} for i, x in enumerate(values, 1)])
    assert (found.began, found.first_bad) == (4, 4)


def test_only_the_newest_row_raises(monkeypatch):
    first, second = alarm("falls", 0.5), alarm("above", 1.0)
    monkeypatch.setattr(collapse, "ALARMS", (first, second))
    assert raised(rows([2.0] * 3 + [0.5] * 2)) == (first,)
    assert raised(rows([0.5] * 3 + [2.0] * 2)) == (second,)
    assert raised(rows([2.0] * 3 + [0.5] * 2 + [None])) == ()
    assert raised(rows([2.0])) == raised([]) == ()


def test_a_run_that_succeeds_is_solved():
    columns = {"train/success": [0.0] * 5 + [0.9] * 10 + [0.0] * 5}
    values = [2.0] * 13 + [0.1] * 7
    found = examine(alarm("falls", 0.5), rows(values))
    assert found.raised[0] == 15
    assert collapse.is_solved(rows(values, **columns), found)
    assert collapse.recent_success(rows(values, **columns), 16) == pytest.approx(0.81)
    assert collapse.recent_success([], 3) == 0.0
    columns["train/success"][14] = 0.89
    assert not collapse.is_solved(rows(values, **columns), found)
    validation = Alarm("a", "validation/success", "unit", "falls", 0.5, 2, True, "about", "source", start=3)
    of_validation = [{**row, "validation/success": row["x"]} for row in rows(values, **columns)]
    assert not collapse.is_solved(of_validation, examine(validation, of_validation))


def test_a_fall_is_over_where_values_are_above_half_of_what_they_were():
    """Below the limit of 0.5, which is more than half of the reference."""
    values = [0.6, 0.62] * 10 + [0.0] * 8 + [0.45] * 12
    found = examine(alarm("significant_fall", 0.5, patience=4, longest=6), rows(values))
    assert (found.began, found.lasts) == (21, False)
    assert 28 <= found.raised[-1] < 33


def test_success_in_training_is_compared_with_its_start():
    success_fallen = next(published for published in collapse.ALARMS if published.name == "success_fallen")
    counts = {"rollout/episodes": [1000.0] * 60}
    for later, raised_at_last in ((0.3, False), (0.1, True)):
        of_run = rows([0.4] * 30 + [later] * 30, **counts)
        of_run = [{**row, "train/success": row["x"]} for row in of_run]
        assert bool(examine(success_fallen, of_run).raised) == raised_at_last
