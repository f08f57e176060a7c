import types

import numpy as np
import pytest

import envs_jax
from agentrl_jax.rollout.envs import level_splits
from agentrl_jax.rollout.envs.level_splits import MIN_LEVELS, LevelSplits, TaskLevels, task_levels
from envs_jax.frozen_lake.text import FROZEN, GOAL, HOLE, START
from envs_jax.splits import Split, level_hashes, splits_of_levels

TRAIN, VALIDATION, TEST = (int(split) for split in (Split.TRAIN, Split.VALIDATION, Split.TEST))


def test_divided_levels_are_used_by_their_split_alone():
    levels = TaskLevels(split_of_row=np.array([TRAIN, TEST, TRAIN, VALIDATION]))
    assert [levels.split(wanted) for wanted in (Split.TRAIN, Split.TEST, Split.ANY)] == [TRAIN, TEST, Split.ANY]
    found = [levels.rows(wanted).tolist() for wanted in (Split.TRAIN, Split.VALIDATION, Split.TEST)]
    assert found == [[0, 2], [3], [1]]
    assert TaskLevels().rows(Split.TRAIN) is None


def test_undivided_levels_are_used_by_all_but_fixed_ones_not_in_training():
    split_of_row, fixed = np.array([TRAIN, TEST, VALIDATION]), np.array([False, True, False])
    levels = TaskLevels("few", split_of_row, fixed, some_fixed=True)
    assert [levels.split(wanted) for wanted in (Split.TRAIN, Split.TEST)] == [Split.NOT_FIXED, Split.ANY]
    assert levels.rows(Split.TRAIN).tolist() == [0, 2]
    assert levels.rows(Split.TEST).tolist() == [0, 1, 2]
    none_fixed = TaskLevels("few", split_of_row)
    assert none_fixed.split(Split.TRAIN) == Split.ANY
    assert none_fixed.rows(Split.TRAIN).tolist() == [0, 1, 2]
    assert LevelSplits((levels, TaskLevels())).of(Split.TRAIN).tolist() == [Split.NOT_FIXED, TRAIN]


@pytest.fixture(scope="module")
def pack():
    env, params = envs_jax.make("FrozenLake")
    random = np.random.default_rng(0)
    boards = []
    for _ in range(400):
        board = random.choice([FROZEN, HOLE], (env.height, env.width), p=[0.7, 0.3])
        start, goal = random.choice(board.size, 2, replace=False)
        board.flat[start], board.flat[goal] = START, GOAL
        boards.append(board.astype(np.int8))
    boards = np.unique(np.stack(boards), axis=0)
    firsts = np.unique(level_hashes(env, params, boards), axis=0, return_index=True)[1]
    boards = boards[np.sort(firsts)]
    splits = splits_of_levels(env, params, boards)
    kept = np.concatenate([np.flatnonzero(splits == split)[:MIN_LEVELS] for split in (TRAIN, VALIDATION, TEST)])
    return env, params, boards[kept]


def test_a_file_is_divided_if_every_split_has_enough_different_levels(pack):
    env, params, boards = pack
    assert len(boards) == 3 * MIN_LEVELS
    with_repeated = np.concatenate([boards, boards[:1, ::-1]])
    found = task_levels(env, params.replace(levels=with_repeated))
    assert found.undivided_reason == ""
    assert found.split_of_row[: 3 * MIN_LEVELS].tolist() == np.repeat([TRAIN, VALIDATION, TEST], MIN_LEVELS).tolist()
    assert found.repeated_rows.tolist() == [False] * 3 * MIN_LEVELS + [True]
    # The repeated level is no other one.
    fewer = task_levels(env, params.replace(levels=with_repeated[1:]))
    assert fewer.undivided_reason == ""
    fewer = task_levels(env, params.replace(levels=np.concatenate([boards[1:], boards[1:2]])))
    assert str(MIN_LEVELS - 1) in fewer.undivided_reason
    assert fewer.rows(Split.TRAIN).tolist() == list(range(3 * MIN_LEVELS))
    assert not fewer.some_fixed


def test_a_generator_is_divided_by_its_draws(monkeypatch):
    env = types.SimpleNamespace(test_levels=())
    counts = dict.fromkeys((Split.TRAIN, Split.VALIDATION, Split.TEST), MIN_LEVELS)
    monkeypatch.setattr(level_splits, "distinct_levels", lambda env, params, draws: counts)
    found = task_levels(env, object())
    assert (found.undivided_reason, found.rows(Split.TRAIN), found.split(Split.TEST)) == ("", None, TEST)
    counts[Split.TEST] = MIN_LEVELS - 1
    assert f"{MIN_LEVELS - 1} for test" in task_levels(env, object()).undivided_reason
    fixed = task_levels(types.SimpleNamespace(test_levels=(1,)), object())
    assert fixed.split(Split.TRAIN) == Split.NOT_FIXED
