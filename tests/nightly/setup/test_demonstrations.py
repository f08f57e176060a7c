"""Demonstrations of BabyAI: plans after random actions, and images of levels."""

import jax
import numpy as np

from agentrl_jax.config import Config, ImitationConfig, PromptConfig, TaskConfig
from agentrl_jax.rollout.envs.level_splits import level_splits
from agentrl_jax.rollout.trajectory import level_ids
from agentrl_jax.setup import build
from agentrl_jax.setup import demonstrations as setup_demonstrations
from agentrl_jax.setup.demonstrations import demonstrations
from agentrl_jax.text.tokenizer import load_small
from envs_jax.splits import Split

LEVELS = 32


def test_plans_after_random_actions_solve_the_level_and_only_they_are_imitated():
    """The random turns are part of the episode; no turn has both kinds of actions."""
    prompt = PromptConfig(max_turns=6, max_actions_per_turn=2, max_actions=12, max_response_tokens=80)
    tasks = (TaskConfig(env="BabyAI-GoToRedBallNoDists", groups=1, options={"mode": "upstream"}),)
    batched_env = build.build_compiled_env(Config(tasks=tasks, prompt=prompt), load_small())
    options = {"prompt": prompt, "context": "full"}
    found = {
        most: demonstrations(
            batched_env,
            level_splits(batched_env),
            jax.random.key(3),
            imitation=ImitationConfig(plans="optimal", levels=LEVELS, random_start=most),
            **options,
        )
        for most in (0, 3)
    }
    assert found[0][1].all()
    trajectory, imitated = found[3]
    assert np.asarray(trajectory.success).all()
    assert not np.asarray(trajectory.turn.format_error)[np.asarray(trajectory.turn_mask)].any()
    turns, before = np.asarray(trajectory.num_turns), np.asarray(~imitated).sum(axis=1)
    assert set(before) == {0, 1, 2}
    assert (turns > before).all()
    actions = np.asarray(trajectory.turn.actions)
    assert {(actions[row, : before[row]] >= 0).sum() for row in range(LEVELS)} == {0, 1, 2, 3}


def test_images_of_levels_are_solved_by_the_same_plans_and_are_new_training_levels(monkeypatch):
    prompt = PromptConfig(max_turns=6, max_actions_per_turn=2, max_actions=12, max_response_tokens=80)
    tasks = (TaskConfig(env="BabyAI-GoToRedBallNoDists", groups=1, options={"mode": "upstream"}),)
    batched_env = build.build_compiled_env(Config(tasks=tasks, prompt=prompt), load_small())
    imitation = ImitationConfig(plans="optimal", levels=LEVELS, random_start=2, images=3)
    inputs = batched_env, level_splits(batched_env), jax.random.key(3), prompt, imitation, "full"
    trajectory, imitated = demonstrations(*inputs)
    count = len(trajectory.num_turns)
    assert 2 * LEVELS < count < 4 * LEVELS  # a fifth is held out, and six colors of one ball repeat
    assert imitated.shape == (count, 6)
    assert np.asarray(trajectory.success).all()
    assert len(set(level_ids(trajectory))) == count
    held_out = np.array(Split.TEST)
    monkeypatch.setattr(setup_demonstrations, "splits_of_levels", lambda *args: np.full(len(args[2]), held_out))
    assert level_ids(demonstrations(*inputs)[0]) == level_ids(trajectory)[:LEVELS]
