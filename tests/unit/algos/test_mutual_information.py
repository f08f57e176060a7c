import math

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from algos_oracles import PROPERTY
from hypothesis import given

from agentrl_jax.algos import mutual_information

TEXTS, PROMPTS = 12, 10
MISSING = ("pairs", "prompts")
measure, smoothed = jax.jit(mutual_information.measure), mutual_information.smoothed


def cases():
    """Scores with ties, lengths, the prompt of each text, which texts are valid, and prompts with duplicates."""

    def make(seed, ties, share):
        draw = np.random.default_rng(seed)
        prompt = draw.integers(0, PROMPTS, PROMPTS) if share < 0.9 else np.arange(PROMPTS)
        scores = -draw.integers(1, 9, (TEXTS, PROMPTS)) / 2 if ties else draw.normal(-20, 6, (TEXTS, PROMPTS))
        # The same prompt gives the same score.
        first = np.array([np.flatnonzero(prompt == number)[0] for number in prompt])
        length = draw.integers(1, 9, TEXTS)
        own = draw.integers(0, PROMPTS, TEXTS)
        return scores[:, first].astype(np.float32), length, own, draw.random(TEXTS) < share, prompt

    return st.builds(make, st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))


def slow(scores, length, own, valid, prompt):
    texts = [i for i in range(len(own)) if valid[i]]
    columns = sorted({int(own[i]) for i in texts})
    found = {"pairs": len(texts), "prompts": len(columns)}
    if len(texts) < 2 or len(columns) < 2:
        return found
    found["mi_bound"] = math.log(len(columns))
    for ending in ("", "_per_token"):
        matched, marginal = [], []
        for i in texts:
            row = [float(scores[i, j]) / (length[i] if ending else 1) for j in range(len(prompt))]
            top = max(row[j] for j in columns)
            mean = sum(math.exp(row[j] - top) for j in columns) / len(columns)
            matched.append(row[own[i]])
            marginal.append(top + math.log(mean))
        gained = [a - b for a, b in zip(matched, marginal)]
        found[f"mi{ending}"] = np.mean(gained)
        found[f"conditional_entropy{ending}"] = -np.mean(matched)
        found[f"marginal_entropy{ending}"] = -np.mean(marginal)
        found[f"marginal_std{ending}"] = np.std(marginal)
        found[f"mi_zscore{ending}"] = np.mean([g / (np.std(marginal) + 1e-3) for g in gained])
    for k in (1, 2, 4, 8):
        hits, lots = [], []
        for i in texts:
            own_score = scores[i, own[i]]
            wrong = [j for j in columns if prompt[j] != prompt[own[i]]]
            right = len(columns) - len(wrong)
            better = sum(scores[i, j] > own_score for j in wrong)
            tied = sum(scores[i, j] == own_score for j in wrong)
            hits.append(by_lot(right, tied, k - better))
            lots.append(by_lot(right, len(wrong), k))
        found[f"retrieval@{k}"] = np.mean(hits)
        found[f"retrieval_chance@{k}"] = np.mean(lots)
        found[f"retrieval_margin@{k}"] = np.mean(hits) - np.mean(lots)
    return found


def by_lot(right, wrong, draws):
    """Probability that `draws` of right + wrong cards contain a right one."""
    draws = min(max(draws, 0), right + wrong)
    return 1 - math.comb(wrong, draws) / math.comb(right + wrong, draws)


@PROPERTY
@given(cases())
def test_the_metrics_are_those_of_the_loops(case):
    found, expected = measure(*case), slow(*case)
    for name, value in found.items():
        if name in expected:
            assert float(value) == pytest.approx(expected[name], rel=1e-4, abs=2e-4), name
        else:
            assert np.isnan(value), name
    assert expected.keys() <= found.keys()
    assert float(found["mi"]) <= float(found["mi_bound"]) + 1e-6 or np.isnan(found["mi"])


@PROPERTY
@given(cases())
def test_texts_that_do_not_count_may_hold_anything(case):
    scores, length, own, valid, prompt = case
    junk = np.where(valid[:, None], scores, np.nan).astype(np.float32)
    junk[:, ~np.isin(np.arange(PROMPTS), own[valid])] = np.inf
    for name, value in measure(junk, np.where(valid, length, 0), own, valid, prompt).items():
        np.testing.assert_array_equal(value, measure(*case)[name], err_msg=name)


def test_the_smoothed_zscore_follows_an_average_of_the_std():
    first = {"a_mi": 1.0, "a_marginal_std": 2.0, "a_mi_per_token": 0.5, "a_marginal_std_per_token": 0.25}
    added = smoothed(first, {})
    assert added["a_marginal_std_smoothed"] == 2.0
    assert added["a_mi_zscore_smoothed_per_token"] == pytest.approx(0.5 / 0.251)
    second = smoothed(first | {"a_marginal_std": 12.0}, added)
    assert second["a_marginal_std_smoothed"] == pytest.approx(3.0)
    assert second["a_mi_zscore_smoothed"] == pytest.approx(1 / 3.001)
    # A measurement without a number leaves the average as it is.
    for std, before in ((3.0, None), (3.0, math.nan), (math.nan, 3.0)):
        found = smoothed({"mi": 1.0, "marginal_std": std}, {"marginal_std_smoothed": before})
        assert found["marginal_std_smoothed"] == 3


def test_texts_of_one_prompt_say_nothing_of_prompts():
    scores, own = np.full((TEXTS, PROMPTS), -3.0, np.float32), np.zeros(TEXTS, int)
    found = measure(scores, np.ones(TEXTS, int), own, np.ones(TEXTS, bool), np.arange(PROMPTS))
    assert (int(found["pairs"]), int(found["prompts"]), np.isnan(found["mi"])) == (TEXTS, 1, True)
