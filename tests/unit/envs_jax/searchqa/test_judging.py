"""Rules for answers, compared with their definitions in Python."""

from collections import Counter

import jax
import numpy as np
import pytest

from envs_jax.searchqa.judging import RULES, is_right

ANSWER, GOLD, ALIASES = 24, 12, 3


def plain(rule, threshold, answer, golds):
    def f1(gold):
        ours, theirs = Counter(answer.split()), Counter(gold.split())
        return 2 * (ours & theirs).total() / (ours.total() + theirs.total())

    by_rule = {"em": lambda gold: answer == gold, "sub_em": lambda gold: gold in answer}
    judge = by_rule.get(rule, lambda gold: f1(gold) >= threshold - 1e-6)
    return any(map(judge, golds)) if answer else False


def as_codes(text, size):
    return np.pad(np.array([*map(ord, text)], np.int32), (0, size - len(text)), constant_values=ord("a"))


@pytest.mark.parametrize("rule", RULES)
def test_rules_are_those_of_their_definitions(rule):
    random = np.random.default_rng(0)

    def text(size):
        return " ".join("".join(random.choice(list("aabé"), size)) for size in random.integers(1, 3, size))

    answers, golds = [""], [["ab"]]
    for _ in range(500):
        golds.append([text(random.integers(1, 5))[:GOLD].strip() for _ in range(random.integers(1, ALIASES + 1))])
        answers.append(golds[-1][-1] if random.random() < 0.2 else text(random.integers(1, 9))[:ANSWER].strip())
    codes = np.stack([as_codes(answer, ANSWER) for answer in answers]).astype(np.uint32)
    full = [[*row, *[""] * (ALIASES - len(row))] for row in golds]
    right = np.array([[as_codes(gold, GOLD) for gold in row] for row in full])
    sizes = np.array([[len(gold) for gold in row] for row in full])
    threshold = 0.5
    judged = jax.jit(jax.vmap(lambda *given: is_right(rule, threshold, *given)))
    found = np.asarray(judged(codes, np.array([*map(len, answers)]), right, sizes)).tolist()
    wanted = [plain(rule, threshold, answer, row) for answer, row in zip(answers, golds)]
    assert found == wanted
    assert 50 < sum(wanted) < 450
