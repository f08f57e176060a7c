"""Levels of an evaluation have different contents."""

import dataclasses
import functools

import jax
import numpy as np

import envs_jax
from agentrl_jax.config import Config, PromptConfig, TaskConfig
from agentrl_jax.evaluate.draws import PATIENCE, Draws
from agentrl_jax.evaluate.level_set import LevelSet
from agentrl_jax.rollout.envs.level_splits import TaskLevels
from agentrl_jax.setup import build
from agentrl_jax.text.tokenizer import load_small
from envs_jax.splits import Split, level_hashes


def keys(numbers):
    return jax.vmap(functools.partial(jax.random.fold_in, jax.random.key(7)))(np.asarray(numbers))


def make(name, split=Split.ANY, **options):
    env, params = envs_jax.make(name, **options)
    return env, params, Draws(env, params, keys, split)


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
    prompt = PromptConfig(max_turns=2, max_response_tokens=16)
    config = Config(tasks=(TaskConfig(env="FrozenLake", groups=1, options={"height": 2, "width": 3}),), prompt=prompt)
    batched_env = build.build_compiled_env(config, load_small())
    of = {"prompt": prompt, "task": 0, "split": Split.TEST, "seed": 1}
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
