"""Returns with penalties and metrics of episodes against plain sums."""

import jax
import numpy as np
import pytest
from made_up import EPISODES, GROUP_SIZE, TURNS, make_trajectory

from agentrl_jax.rollout.metrics import trajectory_metrics
from agentrl_jax.rollout.returns import Penalties, penalized_returns
from agentrl_jax.rollout.trajectory import TRUNCATIONS

PENALTIES = Penalties(-0.1, overlong_buffer=0.5, overlong_penalty=0.3)


@pytest.fixture(scope="module")
def trajectory():
    """Groups of two tasks, alternating; some episodes succeed, two have failed, some are truncated."""
    made, draw = make_trajectory(6), np.random.default_rng(7)
    played = np.asarray(made.turn_mask)
    last = np.arange(TURNS) == np.asarray(made.num_turns)[:, None] - 1
    turn = made.turn.replace(
        reward=made.turn.reward + 1.0,  # also of turns that were not played
        success=last & (draw.random((EPISODES, 1)) < 0.5),
        failed=last & np.isin(np.arange(EPISODES), [1, 6])[:, None],
        valid=played & (draw.random((EPISODES, TURNS)) < 0.5),
        actions=np.where(played[..., None], draw.integers(-1, 3, (EPISODES, TURNS, 2)), -1),
        info={"steps": draw.integers(0, 3, (EPISODES, TURNS)).astype(np.float32)},
    )
    response = made.response.replace(ended=played & (draw.random((EPISODES, TURNS)) < 0.5))
    truncation = draw.integers(0, 1 + len(TRUNCATIONS), EPISODES)
    ids = made.ids.replace(task=made.ids.group % 2)
    return jax.tree.map(np.asarray, made.replace(turn=turn, response=response, truncation=truncation, ids=ids))


def expected_returns(trajectory):
    longest, found = trajectory.response.tokens.shape[2], np.zeros(EPISODES)
    for row in range(EPISODES):
        for turn in range(trajectory.num_turns[row]):
            over = max(0.0, trajectory.response.length[row, turn] - 0.5 * longest) / (0.5 * longest)
            error = trajectory.turn.format_error[row, turn]
            found[row] += trajectory.turn.reward[row, turn] - 0.1 * error - 0.3 * over
    return found


def test_penalties_are_paid_in_played_turns(trajectory):
    np.testing.assert_allclose(penalized_returns(trajectory, PENALTIES), expected_returns(trajectory), atol=1e-5)


def test_metrics_are_counted_per_task_without_failed_episodes(trajectory):
    names = ("short", "long")
    metrics = jax.jit(lambda t: trajectory_metrics(t, names, GROUP_SIZE, PENALTIES))(trajectory)
    t, failed = trajectory, np.asarray(trajectory.failed)
    assert failed.sum() == 2
    steps = np.where(t.turn_mask, t.turn.info["steps"], 0).sum(axis=1) / t.num_turns
    for name, mine in (("", np.full(EPISODES, True)), ("short/", t.ids.task == 0), ("long/", t.ids.task == 1)):
        kept = mine & ~failed
        played = (np.arange(TURNS) < t.num_turns[:, None]) & kept[:, None]
        solved = np.asarray(t.success) & ~failed
        of_group = np.repeat(solved.reshape(-1, GROUP_SIZE).any(axis=1), GROUP_SIZE)
        expected = {
            "success": solved[kept].mean(),
            f"pass@{GROUP_SIZE}": of_group[kept].mean(),
            "raw_return": np.asarray(t.returns)[kept].mean(),
            "return": expected_returns(t)[kept].mean(),
            "turns": t.num_turns[kept].mean(),
            "actions": (t.turn.actions[kept] >= 0).sum(axis=(1, 2)).mean(),
            "response_tokens": t.response.length[played].mean(),
            "ended": t.response.ended[played].mean(),
            "valid_turn": t.turn.valid[played].mean(),
            "valid_format": 1 - t.turn.format_error[played].mean(),
            "failed": failed[mine].mean(),
            "overflow": 0.0,
            "truncated": (t.truncation[kept] > 0).mean(),
            "steps": steps[kept].mean(),
            "non-zero/steps": steps[kept & (steps != 0)].mean(),
        }
        expected |= {f"truncated_{cause}": (t.truncation[kept] == 1 + i).mean() for i, cause in enumerate(TRUNCATIONS)}
        expected |= {"episodes": EPISODES / 2} if name else {}
        mine = {key.removeprefix(name): float(value) for key, value in metrics.items() if key.startswith(name)}
        assert {key: mine[key] for key in expected} == pytest.approx(expected, abs=1e-5), name
    assert len(metrics) == 3 * len(expected) - 1
