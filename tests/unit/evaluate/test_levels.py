"""Levels of an evaluation: different ones, those that a run has learned from, and those that it met later."""

import dataclasses
import functools
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import envs_jax
from agentrl_jax.config import Config, PromptConfig, TaskConfig
from agentrl_jax.evaluate.draws import PATIENCE, Draws
from agentrl_jax.evaluate.level_set import LevelSet
from agentrl_jax.evaluate.midway import MidwayCount
from agentrl_jax.evaluate.seen import learned_from, learned_levels, seen_levels
from agentrl_jax.rollout.envs.level_splits import TaskLevels
from agentrl_jax.setup import build
from agentrl_jax.text.tokenizer import load_small
from envs_jax.splits import Split, level_hashes

PROMPT = PromptConfig(max_turns=2, max_response_tokens=16)


def keys(numbers):
    return jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(7)))(np.asarray(numbers))


def small_lakes():
    config = Config(tasks=(TaskConfig(env="FrozenLake", groups=1, options={"height": 2, "width": 3}),), prompt=PROMPT)
    return build.build_compiled_env(config, load_small())


cached = functools.cache(envs_jax.make)


def make(name, split=Split.ANY, **options):
    """Draws of their own from one environment, whose programs are compiled once."""
    env, params = cached(name, **options)
    return env, params, Draws(env, params, keys, split)


@pytest.mark.nightly
def test_contents_are_different_and_those_of_the_draws():
    """The first of each content is kept, whatever number is wanted first."""
    env, params, draws = make("FrozenLake", Split.TEST, height=3, width=3)
    small, _ = draws.first(5)
    numbers, levels = draws.first(48)
    np.testing.assert_array_equal(small, numbers[:5])
    np.testing.assert_array_equal(make("FrozenLake", Split.TEST, height=3, width=3)[2].first(48)[0], numbers)
    assert len(np.unique(level_hashes(env, params, levels), axis=0)) == 48
    every = envs_jax.registry.sample_levels(env, params, keys(np.arange(numbers[-1] + 1)), Split.TEST)
    np.testing.assert_array_equal(every[numbers], levels)
    first = np.sort(np.unique(level_hashes(env, params, every), axis=0, return_index=True)[1])
    np.testing.assert_array_equal(first, numbers)


@pytest.mark.nightly
def test_a_small_space_has_fewer():
    env, params, draws = make("FrozenLake", height=2, width=3)
    numbers, levels = draws.first(512)
    assert 8 < len(numbers) == len(levels) < 512
    assert len(np.unique(level_hashes(env, params, levels), axis=0)) == len(numbers)
    for wanted in (len(numbers), 10**9):
        np.testing.assert_array_equal(make("FrozenLake", height=2, width=3)[2].first(wanted)[0], numbers)
    late = envs_jax.registry.sample_levels(env, params, keys(numbers[-1] + 1 + np.arange(PATIENCE)), Split.ANY)
    known = {level.tobytes() for level in levels} | {image.tobytes() for x in levels for image in env.level_images(x)}
    assert {level.tobytes() for level in late} <= known
    assert make("Bandit")[2].first(40)[0].tolist() == list(range(40)), "without levels all draws are different"


def test_a_set_of_levels_has_each_content_once_or_what_is_drawn():
    batched_env = small_lakes()
    of = {"prompt": PROMPT, "task": 0, "split": Split.TEST, "seed": 1}
    levels = LevelSet(batched_env=batched_env, levels=TaskLevels("few"), **of)
    number = levels.number(512)
    again = dataclasses.replace(levels, rotation=1)
    assert again.number(number) == number < 512
    np.testing.assert_array_equal(again.boards(number), levels.boards(number))
    assert len(set(np.asarray(again.ids(0, number, number).group).tolist())) == number
    drawn = dataclasses.replace(levels, distinct=False)
    assert np.asarray(drawn.ids(2, 3, 600).group).tolist() == [2, 3, 4]
    assert len({board.tobytes() for board in drawn.boards(600)}) < 600
    task = batched_env.tasks[0]
    pack = dataclasses.replace(task, env_params=task.env_params.replace(levels=np.repeat(levels.boards(9), 2, axis=0)))
    rows = TaskLevels(split_of_row=np.full(18, Split.TEST), repeated_rows=np.arange(18) % 2 == 1)
    packed = LevelSet(batched_env=dataclasses.replace(batched_env, tasks=(pack,)), levels=rows, **of)
    assert packed.number(18) == 9
    np.testing.assert_array_equal(packed.boards(9), levels.boards(9))
    assert dataclasses.replace(packed, distinct=False).number(18) == 18


ROWS = [
    {"step": 0, "stage": "imitation", "levels": ["a", "b"]},
    {"step": 1, "stage": "test", "levels": ["c", "d"]},
    {"step": 2, "stage": "rl", "levels": ["b", "e"]},
]
METRICS = [{"step": 1, "stage": "imitation"}, {"step": 2, "stage": "rl"}]


def test_what_was_learned_from_is_told_by_the_record_and_gaps_are_not_hidden():
    assert learned_levels(ROWS, METRICS, 2) == {"a", "b", "e"}
    assert learned_levels([], [], 0) == set()
    for rows in (ROWS[1:], ROWS[:2]):
        assert learned_levels(rows, METRICS, 2) is None
    assert learned_levels(ROWS[:2], METRICS[:1], 2) is None, "a batch that both records lost is a gap too"
    assert learned_levels(ROWS, METRICS[1:], 2) is None
    began = {"step": 0, "stage": "start", "levels": ["z"]}
    assert learned_levels([began, *ROWS], METRICS, 2) == {"a", "b", "e", "z"}
    assert learned_levels([began | {"known": False}, *ROWS], METRICS, 2) is None
    for rows in (ROWS, ROWS[:2]):
        assert learned_levels(rows, METRICS, 1) == {"a", "b"}, "rows behind the checkpoint do not count"


def test_levels_that_were_learned_from_are_counted_also_turned_and_mirrored():
    lake = small_lakes().tasks[0]
    board = np.array([[3, 0, 2], [0, 1, 0]], np.int8)
    turned, other = board[::-1, ::-1], np.array([[3, 2, 0], [0, 1, 0]], np.int8)

    def ids(*boards):
        found = [lake.env.state_hash(lake.env.reset_to_level(b, lake.env_params)[1], lake.env_params) for b in boards]
        return [f"{first:08x}{second:08x}" for first, second in np.asarray(found).tolist()]

    boards = np.stack([board, board, other])
    found = seen_levels(set(ids(turned)), ids(*boards), TaskLevels(), lake, boards)
    assert found == {"held_out": True, "levels": 3, "distinct_levels": 2, "seen_levels": 0, "seen_images": 2}
    assert seen_levels(set(ids(other)), ids(*boards), TaskLevels(), lake, boards)["seen_levels"] == 1
    assert seen_levels(None, ids(*boards), TaskLevels(), lake, boards)["seen_levels"] is None


def test_a_run_tells_what_it_learned_from_and_met(finished):
    summary = json.loads((finished.folder / "summary.json").read_text())
    assert not summary["held_out"]  # the first task's file has two levels
    small, lake = summary["levels"]["SimpleSokoban"], summary["levels"]["FrozenLake"]
    assert "levels of its file" in small["held_out"]
    assert (small["levels"], small["seen_levels"]) == (2, 2)
    assert (lake["held_out"], lake["seen_levels"], lake["seen_images"]) == (True, 0, 0)
    assert summary["seen_levels"] == 2
    rows = [json.loads(line) for line in (finished.folder / "levels.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows] == ["imitation", "test", "rl", "rl", "rl", "rl"]

    # The first task plays the levels that it is evaluated on, and stays on one after a response without an action.
    met = {task: known["seen_midway"] for task, known in summary["levels"].items()}
    assert 1 <= met["SimpleSokoban"] <= 2
    assert summary["seen_midway"] == sum(met.values())
    meta = json.loads((finished.folder / "checkpoints" / "7" / "meta" / "metadata").read_text())
    assert (meta["midway"]["since"], len(meta["midway"]["boards"])) == (0, summary["seen_midway"])


@pytest.mark.parametrize(
    ("lines", "known", "said"),
    [
        ({"levels.jsonl": [3, 5]}, False, "2 rows of levels.jsonl cannot be read (the first is line 3), so how many"),
        ({"metrics.jsonl": [4]}, False, "1 row of metrics.jsonl cannot be read (the first is line 4), so how many"),
        ({"levels.jsonl": [2]}, True, "1 row of levels.jsonl cannot be read (the first is line 2); no result needs"),
        ({"levels.jsonl": []}, False, "metrics.jsonl or levels.jsonl lacks rows of the 7 steps"),
        ({}, True, None),
    ],
)
def test_an_evaluation_says_which_rows_it_could_not_read(finished, tmp_path, lines, known, said):
    """Line 2 of levels.jsonl belongs to the evaluation, from which nothing was learned."""
    for name in ("levels.jsonl", "metrics.jsonl"):
        rows = (finished.folder / name).read_bytes().split(b"\n")
        for number in lines.get(name, ()):
            rows[number - 1] = rows[number - 1][:-9]
        if lines.get(name) != []:
            (tmp_path / name).write_bytes(b"\n".join(rows))
    told = []
    assert (learned_from(tmp_path, 7, told.append) is not None) == known
    assert [line.startswith(f"{tmp_path}: {said}") for line in told] == [True] * (said is not None)


def test_an_evaluation_says_that_what_was_learned_from_cannot_be_compared(tmp_path):
    """All rows are there, unlike those of records with gaps."""
    row = {"step": 1, "stage": "sft", "levels": ["a"], "known": False}
    (tmp_path / "levels.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "stage": "sft", "sft/loss": 1.0}) + "\n")
    told = []
    assert learned_from(tmp_path, 1, told.append) is None
    assert [line.count("learned from data") for line in told] == [1]


BOARDS = np.array([[1, 1], [2, 2], [3, 3], [4, 4], [5, 5], [1, 5]], np.uint32)
STATES = np.array([[[1, 1], [2, 2], [5, 1]], [[3, 3], [1, 5], [4, 4]]], np.uint32)
"""Of two episodes: boards 0 and 2 are their starts, and [5, 1] has one word of one board and one of another."""


def episodes(*num_turns):
    return SimpleNamespace(turn=SimpleNamespace(state_hash=STATES), num_turns=np.array(num_turns))


def count(*num_turns):
    found = MidwayCount([BOARDS[:4], None, BOARDS[4:]], ["first", "bandit", "last"])
    found.add(episodes(*num_turns))
    return found


def test_states_of_turns_that_were_played_after_the_first_are_counted_also_over_checkpoints():
    for num_turns, first, last in (((1, 1), 0, 0), ((2, 1), 1, 0), ((3, 2), 1, 1), ((1, 3), 1, 1), ((3, 3), 2, 1)):
        found = count(*num_turns)
        assert found.counts() == {"first": {"seen_midway": first}, "last": {"seen_midway": last}}
        found.add(episodes(1, 1))
        assert found.counts()["first"]["seen_midway"] == first, "what was met stays met"
    # A count goes on from a checkpoint.
    before, after = count(2, 1), MidwayCount([BOARDS], ["task"])
    saved = json.loads(json.dumps(before.saved()))
    assert (saved["since"], saved["boards"]) == (0, ["0000000200000002"])
    after.restore(saved, 7)
    assert after.counts() == {"task": {"seen_midway": 1}}
    after.add(episodes(1, 3))
    assert after.counts() == {"task": {"seen_midway": 3}}
    # A checkpoint of a version without a count begins one.
    old, resumed, without_boards = count(3, 3), count(3, 3), MidwayCount([None], ["bandit"])
    old.restore(None, 7)
    assert old.counts() == {task: {"seen_midway": 0, "seen_midway_since": 7} for task in ("first", "last")}
    resumed.restore(old.saved(), 9)
    assert resumed.since == 7
    without_boards.add(episodes(3, 3))
    assert (without_boards.counts(), without_boards.saved()["boards"]) == ({}, [])


def test_a_run_that_starts_from_another_goes_on_from_its_count_of_the_same_boards():
    saved, uncounted = count(2, 1).saved(), {"seen_midway": 0, "seen_midway_from_start": False}
    old = {key: saved[key] for key in ("since", "boards")}
    for of_start, same in ((saved, True), (saved | {"since": 3}, False), (old, False), (None, False)):
        found = count(1, 1)
        found.start_from(of_start)
        assert found.counts()["first"] == ({"seen_midway": 1} if same else uncounted)
        found.restore(found.saved(), 9)
        assert found.counts()["first"] == ({"seen_midway": 1} if same else uncounted)
    other = MidwayCount([BOARDS[1:]], ["task"])
    other.start_from(saved)
    assert other.counts()["task"] == uncounted
