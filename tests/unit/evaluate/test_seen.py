"""Levels of an evaluation that a run has learned from, and boards that its episodes meet after their first turn."""

import json
import shutil
from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest

import envs_jax
from agentrl_jax.config import Config, PromptConfig, TaskConfig
from agentrl_jax.evaluate.midway import MidwayCount
from agentrl_jax.evaluate.seen import learned_from, learned_levels, seen_levels
from agentrl_jax.rollout.envs.level_splits import MIN_LEVELS, TaskLevels, task_levels
from agentrl_jax.setup import build
from agentrl_jax.text.tokenizer import load_small
from envs_jax import registry
from envs_jax.splits import SHARES, Split

ROWS = [
    {"step": 0, "stage": "imitation", "levels": ["a", "b"]},
    {"step": 1, "stage": "test", "levels": ["c", "d"]},
    {"step": 2, "stage": "rl", "levels": ["b", "e"]},
]
METRICS = [{"step": 1, "stage": "imitation"}, {"step": 2, "stage": "rl"}]


def task(**options):
    config = Config(tasks=(TaskConfig(groups=1, **options),), prompt=PromptConfig())
    return build.build_compiled_env(config, load_small()).tasks[0]


def divided(**options):
    made = task(**options)
    return task_levels(made.env, made.env_params)


@pytest.mark.parametrize(
    ("rows", "metrics", "step", "learned"),
    [
        (ROWS, METRICS, 2, {"a", "b", "e"}),
        (ROWS[1:], METRICS, 2, None),
        (ROWS[:2], METRICS, 2, None),
        ([], [], 0, set()),
        # A batch that both records lost is a gap too.
        (ROWS[:2], METRICS[:1], 2, None),
        (ROWS, METRICS[1:], 2, None),
        # Rows behind the checkpoint do not count.
        (ROWS, METRICS, 1, {"a", "b"}),
        (ROWS[:2], METRICS, 1, {"a", "b"}),
    ],
)
def test_what_was_learned_from_is_told_by_the_record_and_gaps_are_not_hidden(rows, metrics, step, learned):
    assert learned_levels(rows, metrics, step) == learned


def test_levels_that_were_learned_from_are_counted_also_turned_and_mirrored():
    lake = task(env="FrozenLake", options={"height": 2, "width": 3})
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


def test_a_space_that_is_too_small_is_not_divided():
    bandit = divided(env="Bandit")
    assert f"at least {MIN_LEVELS} of each" in bandit.undivided_reason
    assert [bandit.split(split) for split in SHARES] == [Split.ANY] * 3
    assert not divided(env="FrozenLake").undivided_reason


def test_a_pack_is_divided_by_its_rows(tmp_path):
    env, params = envs_jax.make("FrozenLake")
    keys = jax.random.split(jax.random.key(0), 256)
    np.save(tmp_path / "pack.npy", registry.sample_levels(env, params, keys))
    enough = divided(env="FrozenLake", levels=str(tmp_path / "pack.npy"))
    rows = [enough.rows(split) for split in SHARES]
    chex.assert_equal(sorted(np.concatenate(rows).tolist()), list(range(256)))
    np.save(tmp_path / "few.npy", np.load(tmp_path / "pack.npy")[:5])
    few = divided(env="FrozenLake", levels=str(tmp_path / "few.npy"))
    assert "5 levels of its file" in few.undivided_reason
    test = np.load(tmp_path / "pack.npy")[rows[list(SHARES).index(Split.TEST)][:1]]
    np.save(tmp_path / "repeated.npy", np.concatenate([np.load(tmp_path / "pack.npy")[rows[0]], *[test] * 20]))
    twice = np.load(tmp_path / "pack.npy")
    np.save(tmp_path / "twice.npy", np.concatenate([twice, twice[:, ::-1]]))
    found = divided(env="FrozenLake", levels=str(tmp_path / "twice.npy"))
    assert not found.repeated_rows[rows[0]].all()
    assert found.repeated_rows[256:].all()
    assert "1 for test" in divided(env="FrozenLake", levels=str(tmp_path / "repeated.npy")).undivided_reason
    np.testing.assert_array_equal(few.rows(Split.TEST), np.arange(5))


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
    assert 0 <= met["FrozenLake"] <= summary["levels"]["FrozenLake"]["levels"]
    assert summary["seen_midway"] == sum(met.values())
    assert f"and met {met['SimpleSokoban']} on the way" in " ".join(finished.output.split())
    meta = json.loads((finished.folder / "checkpoints" / "7" / "meta" / "metadata").read_text())
    assert (meta["midway"]["since"], len(meta["midway"]["boards"])) == (0, summary["seen_midway"])


@pytest.mark.parametrize(
    ("lines", "known", "said"),
    [
        ({"levels.jsonl": [3, 5]}, False, "2 rows of levels.jsonl cannot be read (the first is line 3), so how many"),
        ({"metrics.jsonl": [4]}, False, "1 row of metrics.jsonl cannot be read (the first is line 4), so how many"),
        ({"levels.jsonl": [4], "metrics.jsonl": [5]}, False, "1 row of levels.jsonl cannot be read (the first is"),
        ({"levels.jsonl": [2]}, True, "1 row of levels.jsonl cannot be read (the first is line 2); no result needs"),
        ({"levels.jsonl": []}, False, "metrics.jsonl or levels.jsonl lacks rows of the 7 steps"),
        ({}, True, None),
    ],
)
def test_an_evaluation_says_which_rows_it_could_not_read(finished, tmp_path, lines, known, said):
    """Line 2 of levels.jsonl belongs to the evaluation, from which nothing was learned."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("levels.jsonl", "metrics.jsonl"):
        shutil.copy(finished.folder / name, copy)
    for name, numbers in lines.items():
        rows = (copy / name).read_bytes().split(b"\n")
        for number in numbers:
            rows[number - 1] = rows[number - 1][:-9]
        (copy / name).write_bytes(b"\n".join(rows))
        if not numbers:
            (copy / name).unlink()
    told = []
    assert (learned_from(copy, 7, told.append) is not None) == known
    assert len(told) == (said is not None)
    assert said is None or (said in told[0] and told[0].startswith(f"{copy}: "))


BOARDS = np.array([[1, 1], [2, 2], [3, 3], [4, 4], [5, 5], [1, 5]], np.uint32)
STATES = np.array([[[1, 1], [2, 2], [5, 1]], [[3, 3], [1, 5], [4, 4]]], np.uint32)
"""Of two episodes: boards 0 and 2 are their starts, and [5, 1] has one word of one board and one of another."""


def episodes(*num_turns):
    return SimpleNamespace(turn=SimpleNamespace(state_hash=STATES), num_turns=np.array(num_turns))


def count(*num_turns):
    found = MidwayCount([BOARDS[:4], None, BOARDS[4:]], ["first", "bandit", "last"])
    found.add(episodes(*num_turns))
    return found


def test_states_of_turns_that_were_played_after_the_first_are_counted():
    for num_turns, first, last in (((1, 1), 0, 0), ((2, 1), 1, 0), ((3, 2), 1, 1), ((1, 3), 1, 1), ((3, 3), 2, 1)):
        found = count(*num_turns)
        assert found.counts() == {"first": {"seen_midway": first}, "last": {"seen_midway": last}}
        found.add(episodes(1, 1))
        assert found.counts()["first"]["seen_midway"] == first, "what was met stays met"


def test_a_count_goes_on_from_a_checkpoint():
    before, after = count(2, 1), MidwayCount([BOARDS], ["task"])
    saved = json.loads(json.dumps(before.saved()))
    assert saved == {"since": 0, "boards": ["0000000200000002"]}
    after.restore(saved, 7)
    assert after.counts() == {"task": {"seen_midway": 1}}
    after.add(episodes(1, 3))
    assert after.counts() == {"task": {"seen_midway": 3}}


def test_a_checkpoint_of_a_version_without_a_count_begins_one():
    old = count(3, 3)
    old.restore(None, 7)
    assert old.counts() == {task: {"seen_midway": 0, "seen_midway_since": 7} for task in ("first", "last")}
    resumed = count(3, 3)
    resumed.restore(old.saved(), 9)
    assert resumed.since == 7


def test_without_boards_nothing_is_counted():
    found = MidwayCount([None], ["bandit"])
    found.add(episodes(3, 3))
    assert (found.counts(), found.saved()["boards"]) == ({}, [])
