import jax
import numpy as np
import pytest
from demonstrated import LAKE, LEVELS, TURNS, demonstrated, make_batched_env

from agentrl_jax.config import Config, ImitationConfig, RolloutConfig
from agentrl_jax.errors import BadValue
from agentrl_jax.evaluate.seen import seen_levels
from agentrl_jax.rollout.envs.level_splits import TaskLevels
from agentrl_jax.rollout.trajectory import level_ids
from agentrl_jax.setup import demonstrations as setup_demonstrations
from agentrl_jax.setup.start import imitated_rows
from envs_jax import registry
from envs_jax.splits import Split


@pytest.mark.nightly
def test_demonstrations_end_where_the_context_is_full():
    """Turns that fit are imitated as without a limit, and nothing after them is."""
    trajectory, imitated = demonstrated(make_batched_env(LAKE, actions=1), "random")
    whole = jax.tree.map(np.asarray, imitated_rows(Config(), trajectory, imitated))
    turns, length = trajectory.num_turns, whole.length
    assert set(turns) == {1, TURNS}
    limit = int(length[turns == TURNS].min()) - 1
    assert length[turns == 1].max() <= limit
    limited = Config(rollout=RolloutConfig(context_tokens=limit))
    cut = jax.tree.map(np.asarray, imitated_rows(limited, trajectory, imitated))
    uncut, left = (rows.response_mask.reshape(LEVELS, TURNS, -1) for rows in (whole, cut))
    np.testing.assert_array_equal(uncut[:, 0], left[:, 0])
    assert (uncut[:, 1].any(), left[:, 1].any()) == (True, False)
    assert cut.tokens.shape[1] == limit >= cut.length.max()
    read = [np.take_along_axis(x.tokens, cut.position, 1)[cut.response_mask] for x in (whole, cut)]
    np.testing.assert_array_equal(*read)


def test_planners_room_and_as_many_levels_are_asked_for(tmp_path):
    for name, room, imitation, key in (
        ("Bandit", 40, {"plans": "optimal"}, "Bandit"),
        ("Bandit", 3, {"plans": "random"}, "max_response_tokens"),
        ("FrozenLake", 40, {"random_start": 2}, "imitation.random_start"),
        ("FrozenLake", 40, {"dagger_rounds": 2}, "imitation.dagger_rounds"),
        ("SimpleSokoban", 40, {"random_start": 2}, "imitation.random_start"),
        ("FrozenLake", 40, {"plans": "exploring"}, "imitation.plans"),
        ("FrozenLake", 40, {"images": 2}, "imitation.images"),
    ):
        with pytest.raises(BadValue) as refused:
            setup_demonstrations.check_imitable(make_batched_env(name, actions=1), room, ImitationConfig(**imitation))
        assert refused.value.key == key
    setup_demonstrations.check_imitable(make_batched_env("Bandit", actions=1), 40, ImitationConfig(plans="random"))
    np.save(tmp_path / "pack.npy", np.array([[[3, 0, 2], [0, 0, 0], [0, 1, 0]]], np.int8))
    batched_env = make_batched_env(LAKE, actions=2, levels=str(tmp_path / "pack.npy"))
    with pytest.raises(BadValue, match="have only 1 different") as refused:
        demonstrated(batched_env, "optimal", levels=2)
    assert (refused.value.key, refused.value.value) == ("imitation.levels", 2)


def test_optimal_plans_are_of_different_training_levels(monkeypatch):
    """A long search shows progress, and its pieces give the same plans."""
    batched_env, lines = make_batched_env(LAKE, actions=2), []
    trajectory, _ = demonstrated(batched_env, "optimal", report=lines.append)
    assert len(set(level_ids(trajectory))) == LEVELS
    assert trajectory.success.all()
    task = batched_env.tasks[0]
    boards = registry.sample_levels(task.env, task.env_params, jax.random.split(jax.random.key(0), 512), Split.TEST)
    assert seen_levels(set(level_ids(trajectory)), [], TaskLevels(), task, boards)["seen_images"] == 0
    assert lines == []
    monkeypatch.setattr(setup_demonstrations, "PLANNED_AT_ONCE", LEVELS // 2)
    pieces, _ = demonstrated(batched_env, "optimal", report=lines.append)
    assert len(lines) > 1
    assert f"{LEVELS} of {LEVELS}" in lines[-1]
    jax.tree.map(np.testing.assert_array_equal, trajectory, pieces)
