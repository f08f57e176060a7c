"""Demonstrations: the random plans and their responses."""

import jax
import numpy as np
import pytest

from agentrl_jax.config import Config, ImitationConfig, PromptConfig, RolloutConfig, TaskConfig
from agentrl_jax.evaluate.seen import seen_levels
from agentrl_jax.rollout.envs.level_splits import TaskLevels, level_splits
from agentrl_jax.rollout.trajectory import level_ids
from agentrl_jax.setup import build
from agentrl_jax.setup import demonstrations as setup_demonstrations
from agentrl_jax.setup.demonstrations import check_imitable, demonstrations
from agentrl_jax.setup.start import imitated_rows
from agentrl_jax.text.tokenizer import load_small
from envs_jax import registry
from envs_jax.splits import Split

LEVELS, TURNS, BUDGET = 32, 2, 3
PROMPT = PromptConfig(max_turns=TURNS, max_response_tokens=40, max_actions=BUDGET)


def make_batched_env(*names, actions, encoder="pieces"):
    prompt = PromptConfig(
        think=True, max_turns=TURNS, max_actions_per_turn=actions, max_actions=BUDGET, encoder=encoder
    )
    config = Config(tasks=tuple(TaskConfig(env=name, groups=1) for name in names), prompt=prompt)
    return build.build_compiled_env(config, load_small())


def test_random_plans_are_uniform_and_said_as_the_grammar_reads_them():
    """All names and all lengths occur; the environment needs no planner."""
    batched_env = make_batched_env("Bandit", "FrozenLake-deterministic", actions=2, encoder="canonical")
    trajectory, _ = demonstrations(
        batched_env,
        level_splits(batched_env),
        jax.random.key(3),
        prompt=PROMPT,
        imitation=ImitationConfig(plans="random", levels=LEVELS),
        context="single_turn",
    )
    task, actions = np.asarray(trajectory.ids.task), np.asarray(trajectory.turn.actions)
    assert (np.bincount(task) == LEVELS).all()
    for index, of_task in enumerate(batched_env.tasks):
        mine = actions[task == index]
        assert set(mine[mine >= 0]) == set(range(of_task.env.num_actions))
    assert not np.asarray(trajectory.turn.format_error)[np.asarray(trajectory.turn_mask)].any()
    tokenizer = load_small()
    for row in range(len(task)):
        response = np.asarray(trajectory.response.tokens[row, 0])[: int(trajectory.response.length[row, 0])]
        names = batched_env.tasks[task[row]].env.actions
        said = (
            tokenizer.decode(response.tolist()).removeprefix("</think><answer>").removesuffix("</answer>").split("||")
        )
        executed = [names[a] for a in actions[row, 0] if a >= 0]
        assert said[: len(executed)] == executed
        assert 1 <= len(said) <= 2


def test_demonstrations_end_where_the_context_is_full():
    """Turns that fit are imitated as without a limit, and nothing after them is."""
    batched_env = make_batched_env("FrozenLake-deterministic", actions=1)
    trajectory, imitated = demonstrations(
        batched_env,
        level_splits(batched_env),
        jax.random.key(3),
        prompt=PROMPT,
        imitation=ImitationConfig(plans="random", levels=LEVELS),
        context="full",
    )
    whole = imitated_rows(Config(), trajectory, imitated)
    turns = np.asarray(trajectory.num_turns)
    assert set(turns) == {1, TURNS}
    length = np.asarray(whole.length)
    limit = int(length[turns == TURNS].min()) - 1
    assert length[turns == 1].max() <= limit
    cut = imitated_rows(Config(rollout=RolloutConfig(context_tokens=limit)), trajectory, imitated)
    per_turn = [np.asarray(rows.response_mask).reshape(LEVELS, TURNS, -1) for rows in (whole, cut)]
    np.testing.assert_array_equal(per_turn[0][:, 0], per_turn[1][:, 0])
    assert per_turn[0][:, 1].any()
    assert not per_turn[1][:, 1].any()
    assert cut.tokens.shape[1] == limit
    assert np.asarray(cut.length).max() <= limit
    sampled = np.asarray(cut.response_mask)
    read = [np.take_along_axis(np.asarray(x.tokens), np.asarray(cut.position), 1)[sampled] for x in (whole, cut)]
    np.testing.assert_array_equal(*read)


def test_planners_and_room_are_asked_for():
    batched_env = make_batched_env("Bandit", actions=1)
    with pytest.raises(ValueError, match=r"imitation\.plans to random"):
        check_imitable(batched_env, 40, ImitationConfig(plans="optimal"))
    with pytest.raises(ValueError, match="max_response_tokens is 3"):
        check_imitable(batched_env, 3, ImitationConfig(plans="random"))
    check_imitable(batched_env, 40, ImitationConfig(plans="random"))
    with pytest.raises(ValueError, match="FrozenLake has a planner that starts with the episode"):
        check_imitable(make_batched_env("FrozenLake", actions=1), 40, ImitationConfig(random_start=2))
    with pytest.raises(ValueError, match="dagger_rounds is 2, but FrozenLake has a planner that starts"):
        check_imitable(make_batched_env("FrozenLake", actions=1), 40, ImitationConfig(dagger_rounds=2))
    with pytest.raises(ValueError, match="random_start is 2, but SimpleSokoban has no random actions before a plan"):
        check_imitable(make_batched_env("SimpleSokoban", actions=1), 40, ImitationConfig(random_start=2))
    with pytest.raises(ValueError, match="FrozenLake has no planner that looks around; use optimal"):
        check_imitable(make_batched_env("FrozenLake", actions=1), 40, ImitationConfig(plans="exploring"))
    with pytest.raises(ValueError, match="FrozenLake has no symmetry that changes its text"):
        check_imitable(make_batched_env("FrozenLake", actions=1), 40, ImitationConfig(images=2))


def test_optimal_plans_are_of_different_training_levels():
    batched_env = make_batched_env("FrozenLake-deterministic", actions=2)
    trajectory, _ = demonstrations(
        batched_env,
        level_splits(batched_env),
        jax.random.key(3),
        prompt=PROMPT,
        imitation=ImitationConfig(plans="optimal", levels=LEVELS),
        context="full",
    )
    assert len(set(level_ids(trajectory))) == LEVELS
    assert np.asarray(trajectory.success).all()
    task = batched_env.tasks[0]
    boards = registry.sample_levels(task.env, task.env_params, jax.random.split(jax.random.key(0), 512), Split.TEST)
    known = seen_levels(set(level_ids(trajectory)), [], TaskLevels(), task, boards)
    assert known["seen_images"] == 0


def test_a_long_search_shows_progress(monkeypatch):
    """And its pieces give the same plans."""
    batched_env = make_batched_env("FrozenLake-deterministic", actions=2)
    lines = []
    inputs = batched_env, level_splits(batched_env), jax.random.key(3), PROMPT
    imitation = ImitationConfig(plans="optimal", levels=LEVELS)
    whole, _ = demonstrations(*inputs, imitation, "full", report=lines.append)
    assert lines == []
    monkeypatch.setattr(setup_demonstrations, "PLANNED_AT_ONCE", LEVELS // 2)
    pieces, _ = demonstrations(*inputs, imitation, "full", report=lines.append)
    assert len(lines) > 1
    assert lines[-1] == f"FrozenLake-deterministic: plans of {LEVELS} of {LEVELS} levels"
    for array, other in zip(jax.tree.leaves(whole), jax.tree.leaves(pieces), strict=True):
        np.testing.assert_array_equal(array, other)


def test_more_different_levels_than_there_are_are_refused(tmp_path):
    np.save(tmp_path / "pack.npy", np.array([[[3, 0, 2], [0, 0, 0], [0, 1, 0]]], np.int8))
    task = TaskConfig(env="FrozenLake-deterministic", groups=1, levels=str(tmp_path / "pack.npy"))
    config = Config(tasks=(task,), prompt=PromptConfig(max_turns=TURNS, max_actions_per_turn=2, max_actions=BUDGET))
    batched_env = build.build_compiled_env(config, load_small())
    with pytest.raises(ValueError, match=r"imitation\.levels is 2, but 128 samples .* have only 1 different"):
        demonstrations(
            batched_env,
            level_splits(batched_env),
            jax.random.key(0),
            prompt=PROMPT,
            imitation=ImitationConfig(plans="optimal", levels=2),
            context="full",
        )
