"""Pairs of settings: either the run is refused with one sentence, or both settings change the parameters."""

import pytest
from setting_table import BASE, IDLE_WITH, TRIED, Setting, put
from two_updates import SMALLEST, Judge, difference, read


@pytest.fixture(scope="module")
def judge():
    return Judge()


def is_known(idle: Setting, other: Setting) -> bool:
    """Whether a setting has no effect together with another, for a listed reason."""
    return any(idle.name in names and rule(other) for names, rule, _ in IDLE_WITH)


def complaints(judge, one: Setting, other: Setting) -> list[str]:
    """Returns what is wrong with a pair."""
    refusal = judge.refusal(one, other)
    if refusal:
        # One sentence that names a value: no traceback, no second line.
        return [] if "\n" not in refusal and " is " in f" {refusal} " else [f"{one} with {other}: {refusal}"]
    idle = judge.idle(one, other)
    of = [(x, other if x is one else one) for x in idle]
    return [f"{x} changes nothing beside {beside}" for x, beside in of if not is_known(x, beside)]


@pytest.mark.parametrize("first", TRIED, ids=str)
def test_every_pair(judge, first):
    """All pairs with settings that come later in the table; hundreds of programs."""
    later = TRIED[TRIED.index(first) + 1 :]
    found = [line for other in later if other.name != first.name for line in complaints(judge, first, other)]
    assert found == []


def test_what_changes_memory_alone_is_seen_to_change_nothing(judge):
    """Checks the criterion: microbatches change only rounding, and are found to have no effect."""
    parts = judge.results.of(read(put(BASE, {"algo.grad_accum_steps": 2})))
    assert difference(parts, judge.results.of(read(BASE))) < SMALLEST / 3
