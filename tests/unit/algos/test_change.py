"""Falls of a series, against the definition in plain Python, window by window."""

import math

import numpy as np
import pytest
from alarms import falls
from scipy import stats

from agentrl_jax.algos import change


def variance(values):
    return sum((x - sum(values) / len(values)) ** 2 for x in values)


def significance(reference, window, bound, share, counts, independent):
    """The t of a window that has fallen; None if chance may have made it, or if it is not low."""
    before, after = (sum(part) / len(part) for part in (reference, window))
    if not (after < bound and after < share * before):
        return None
    freedom = max(len(reference) + len(window) - 2, 1)
    pooled = (variance(reference) + variance(window)) / freedom
    own = variance(reference) / max(len(reference) - 1, 1)
    if counts:
        solved = [round(sum(x * n for x, n in zip(*part))) for part in ((reference, counts[0]), (window, counts[1]))]
        total = sum(counts[0]) + sum(counts[1])
        rate = sum(x * n for x, n in zip(reference + window, counts[0] + counts[1])) / total
        pooled = max(pooled, rate * (1 - rate) * (len(reference) + len(window)) / total)
        p = stats.binom.sf(solved[0] - 1, sum(solved), sum(counts[0]) / total)
    else:
        high = [sum(x >= bound for x in part) for part in (reference, window)]
        p = stats.hypergeom.sf(high[0] - 1, len(reference) + len(window), sum(high), len(reference))
    t = (before - after) / (math.sqrt(max(pooled, own) / len(reference) + pooled / len(window)) + 1e-12)
    large = independent or stats.t.sf(t, freedom) < change.FALSE_ALARMS
    return t if large and p <= change.FALSE_ALARMS else None


def expected(values, *, bound, share, start, shortest, longest, counts=None, independent=False):
    found = []
    for end in range(len(values)):
        best = (-1.0, -1, math.nan, math.nan)
        for length in range(shortest, longest + 1):
            first = end - length + 1
            if first < (1 if start is None else start):
                continue
            until = first if start is None else start
            parts = [slice(0, until), slice(first, end + 1)]
            reference, window = (values[part].tolist() for part in parts)
            of_parts = counts is not None and [counts[part].tolist() for part in parts]
            t = significance(reference, window, bound, share, of_parts, independent)
            if t is not None and t > best[0]:
                best = (t, first, sum(window) / length, sum(reference) / until)
        found.append(best[1:])
    return [list(column) for column in zip(*found)]


@pytest.mark.parametrize("start", [None, 12])
@pytest.mark.parametrize("kind", ["values", "counts", "independent"])
def test_the_windows_that_have_fallen(start, kind):
    random = np.random.default_rng(len(kind))
    some = 0
    for after in (0.02, 0.05, 0.1, 0.2):
        counts = random.integers(6, 40, 44).astype(float)
        rate = np.r_[np.full(24, 0.4), np.full(20, after)]
        values = random.binomial(counts.astype(int), rate) / counts
        options = {"bound": 0.25, "share": 0.5, "start": start, "shortest": 3, "longest": 9}
        if kind != "values":
            options |= {"counts": counts, "independent": kind == "independent"}
        found = falls(values, **options)
        begins, means, references = expected(values, **options)
        assert found.begins.tolist() == begins
        np.testing.assert_allclose(found.means, means, rtol=1e-9)
        np.testing.assert_allclose(found.references, references, rtol=1e-9)
        some += sum(begin >= 0 for begin in begins)
    assert some > 10


def test_a_reference_that_varies_by_chance_hides_a_fall():
    values = np.r_[np.tile([0.0, 2.0], 6), np.full(6, 0.45)]
    options = {"bound": 0.6, "share": 0.5, "start": 12, "shortest": 6, "longest": 6}
    assert falls(values, **options).begins[-1] == expected(values, **options)[0][-1] == -1


@pytest.mark.parametrize("length", [0, 1, 9])
def test_too_short_a_series_has_no_fall(length):
    found = falls(np.ones(length), bound=2.0, share=2.0, start=10, shortest=2, longest=4)
    assert found.begins.tolist() == [-1] * length
    assert np.isnan(found.means).all()
