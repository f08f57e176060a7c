from itertools import product

import numpy as np
import pytest
import sokoban_boards as slow
from sokoban_boards import TWO_BOXES, generate_pack

from envs_jax.sokoban import oracle

# A corridor: two pushes to the right solve it, after any other actions.
CORRIDOR = slow.board("0000000 0154120 0000000")


def solves(level, plan):
    codes = level.tolist()
    solved = slow.uncovered(codes) == 0
    for action in plan:
        if not solved:
            codes, _, solved, _ = slow.step(codes, action)
    return solved


def test_plans_solve_and_no_shorter_plan_does():
    levels = [*generate_pack(range(60)), *generate_pack(range(20), *TWO_BOXES)]
    for level in levels:
        plan = oracle.solve(level)
        assert plan.dtype == np.int32
        assert solves(level, plan)
        if len(plan) <= 4:
            assert not any(solves(level, shorter) for shorter in product(range(4), repeat=len(plan) - 1))
    lengths = np.array([len(oracle.solve(level)) for level in levels[:40]])
    for budget in (1, 3, 6):
        expected = np.where(lengths <= budget, lengths, -1)
        np.testing.assert_array_equal(oracle.plan_lengths(levels[:40], budget), expected)


def test_levels_without_a_plan_and_without_need_of_one():
    assert oracle.solve(slow.board("00000 02145 00000")) is not None
    assert oracle.solve(slow.board("00000 02450 00000")) is not None
    corner, solved = slow.board("00000 04510 02110 00000"), slow.board("0000 0530 0000")
    assert oracle.solve(corner) is None
    assert len(oracle.solve(solved)) == 0
    np.testing.assert_array_equal(oracle.plan_lengths([corner], 50), [-1])
    np.testing.assert_array_equal(oracle.plan_lengths([solved], 0), [0])
    np.testing.assert_array_equal(oracle.random_success([corner], 50), np.zeros((1, 51)))
    np.testing.assert_array_equal(oracle.random_success([solved], 0), [[1.0]])


def test_plans_after_other_actions_solve_the_rest():
    rng, none = np.random.default_rng(0), 0
    for level in [*generate_pack(range(40)), *generate_pack(range(10), *TWO_BOXES)]:
        first = rng.integers(-1, 4, size=rng.integers(0, 6)).astype(np.int32)
        codes = level.tolist()
        for action in first[first >= 0]:
            codes = slow.step(codes, action)[0]
        expected = oracle.solve(np.array(codes, np.int8)) if slow.uncovered(codes) else None
        taken = (first >= 0).sum()
        plan = oracle.plan_after(level, first, 100)
        assert (plan is None) == (expected is None)
        if plan is None:
            none += 1
            continue
        assert len(plan) == len(expected)
        assert solves(level, [*first[first >= 0], *plan])
        assert oracle.plan_after(level, first, taken + len(plan)) is not None
        assert oracle.plan_after(level, first, taken + len(plan) - 1) is None
    assert 0 < none < 25
    assert oracle.plan_after(CORRIDOR, np.array([3, 3], np.int32), 100) is None  # solved on the way


def test_random_success_equals_enumeration_and_too_large_a_search_is_refused(monkeypatch):
    one_box, two_boxes = [CORRIDOR, *generate_pack(range(4))], generate_pack(range(3), *TWO_BOXES)
    for levels, lengths in ((one_box, range(1, 5)), (two_boxes, [5])):
        found = oracle.random_success(levels, 5)
        assert (found.dtype, found.shape) == (np.float64, (len(levels), 6))
        for length in lengths:
            plans = list(product(range(4), repeat=length))
            expected = [np.mean([solves(level, plan) for plan in plans]) for level in levels]
            np.testing.assert_allclose(found[:, length], expected, atol=1e-12)
        assert found.max() > 0
    monkeypatch.setattr(oracle, "MAX_POSITIONS", 3)
    with pytest.raises(ValueError, match="more than 3 reachable positions"):
        oracle.random_success(generate_pack([1]), 10)
