import jax
import numpy as np
import pytest

from agentrl_jax.config import Config, ImitationConfig, PromptConfig, TaskConfig
from agentrl_jax.rollout.contexts import FULL
from agentrl_jax.rollout.envs.level_splits import level_splits
from agentrl_jax.rollout.trajectory import level_ids
from agentrl_jax.setup import build
from agentrl_jax.setup import demonstrations as setup_demonstrations
from agentrl_jax.text.tokenizer import load_small
from envs_jax.splits import Split

LEVELS = 32


@pytest.fixture(scope="module")
def demonstrated():
    prompt = PromptConfig(max_turns=6, max_actions_per_turn=2, max_actions=12, max_response_tokens=80)
    tasks = (TaskConfig(env="BabyAI-GoToRedBallNoDists", groups=1, options={"mode": "upstream"}),)
    batched_env = build.build_compiled_env(Config(tasks=tasks, prompt=prompt), load_small())

    def demonstrated(**options):
        imitation = ImitationConfig(plans="optimal", levels=LEVELS, **options)
        inputs = batched_env, level_splits(batched_env), jax.random.key(3), prompt, imitation, FULL
        return jax.tree.map(np.asarray, setup_demonstrations.demonstrations(*inputs))

    return demonstrated


def test_plans_after_random_actions_solve_the_level_and_only_they_are_imitated(demonstrated):
    """The random turns are part of the episode; no turn has both kinds of actions."""
    assert demonstrated()[1].all()
    trajectory, imitated = demonstrated(random_start=3)
    assert trajectory.success.all()
    assert not trajectory.turn.format_error[trajectory.turn_mask].any()
    before, actions = (~imitated).sum(axis=1), trajectory.turn.actions
    assert set(before) == {0, 1, 2}
    assert (trajectory.num_turns > before).all()
    assert {(actions[row, : before[row]] >= 0).sum() for row in range(LEVELS)} == {0, 1, 2, 3}


def test_images_of_levels_are_solved_by_the_same_plans_and_are_new_training_levels(demonstrated, monkeypatch):
    trajectory, imitated = demonstrated(random_start=2, images=3)
    count = len(trajectory.num_turns)
    assert 2 * LEVELS < count < 4 * LEVELS  # a fifth is held out, and six colors of one ball repeat
    assert imitated.shape == (count, 6)
    assert trajectory.success.all()
    assert len(set(level_ids(trajectory))) == count
    held_out = np.array(Split.TEST)
    monkeypatch.setattr(setup_demonstrations, "splits_of_levels", lambda *args: np.full(len(args[2]), held_out))
    assert level_ids(demonstrated(random_start=2, images=3)[0]) == level_ids(trajectory)[:LEVELS]
