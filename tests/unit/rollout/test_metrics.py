import jax
import jax.numpy as jnp
import numpy as np
import pytest
from made_up import EPISODES, GROUP_SIZE, TRAJECTORY, TURNS

from agentrl_jax.rollout.metrics import trajectory_metrics
from agentrl_jax.rollout.returns import RewardRule, overlong, total_returns, turn_rewards
from agentrl_jax.rollout.trajectory import TRUNCATIONS

PENALTIES = RewardRule(-0.25, 0.4, 0.5)
LIMIT = TRAJECTORY.response.tokens.shape[-1]


def drawn():
    """Two tasks, of which one has a failed episode; what is recorded of turns that were not played is garbage."""
    draw = np.random.default_rng(0)

    def flags(*shape):
        return jnp.asarray(draw.random(shape) < 0.4)

    turn = TRAJECTORY.turn.replace(
        reward=jnp.asarray(draw.normal(size=(EPISODES, TURNS)), jnp.float32),
        actions=jnp.asarray(draw.integers(-1, 3, (EPISODES, TURNS, 2)), jnp.int32),
        valid=flags(EPISODES, TURNS),
        format_error=flags(EPISODES, TURNS).astype(jnp.int32),
        success=flags(EPISODES, TURNS) & TRAJECTORY.turn_mask,
        failed=jnp.zeros((EPISODES, TURNS), bool).at[3, 0].set(True),
        info={"boxes": jnp.asarray(draw.integers(0, 2, (EPISODES, TURNS)), jnp.float32)},
    )
    number = jnp.arange(EPISODES)
    return TRAJECTORY.replace(
        turn=turn,
        response=TRAJECTORY.response.replace(ended=flags(EPISODES, TURNS)),
        ids=TRAJECTORY.ids.replace(task=(number >= 2 * GROUP_SIZE).astype(jnp.int32)),
        overflow=flags(EPISODES),
        truncation=number % 4,
    )


EPISODES_DRAWN = drawn()


def reward_of(t, e, turn):
    length = int(t.response.length[e, turn])
    buffered = min(max((length - 0.6 * LIMIT) / (0.4 * LIMIT), 0.0), 1.0)
    return float(t.turn.reward[e, turn]) - 0.25 * int(t.turn.format_error[e, turn]) - 0.5 * buffered


def expected(t, chosen):
    played = {e: range(int(t.num_turns[e])) for e in chosen if e != 3}
    turns = [(e, turn) for e in played for turn in played[e]]
    solved = {e for e in played if np.asarray(t.turn.success[e]).any()}
    boxes = [np.mean([float(t.turn.info["boxes"][e, turn]) for turn in played[e]]) for e in played]
    groups = {e // GROUP_SIZE for e in solved}
    return {
        "success": len(solved) / len(played),
        f"pass@{GROUP_SIZE}": np.mean([e // GROUP_SIZE in groups for e in played]),
        "return": np.mean([sum(reward_of(t, e, turn) for turn in played[e]) for e in played]),
        "raw_return": np.mean([np.asarray(t.turn.reward[e]).sum() for e in played]),
        "turns": len(turns) / len(played),
        "actions": np.mean([(np.asarray(t.turn.actions[e]) >= 0).sum() for e in played]),
        "response_tokens": np.mean([int(t.response.length[at]) for at in turns]),
        "valid_format": np.mean([1 - int(t.turn.format_error[at]) for at in turns]),
        "valid_turn": np.mean([bool(t.turn.valid[at]) for at in turns]),
        "ended": np.mean([bool(t.response.ended[at]) for at in turns]),
        "failed": float(3 in chosen) / len(chosen),
        "overflow": np.mean([bool(t.overflow[e]) for e in played]),
        "truncated": np.mean([e % 4 > 0 for e in played]),
        **{f"truncated_{cause}": np.mean([e % 4 == 1 + i for e in played]) for i, cause in enumerate(TRUNCATIONS)},
        "boxes": np.mean(boxes),
        "non-zero/boxes": np.mean([x for x in boxes if x]),
    }


def test_returns_and_penalties():
    t = EPISODES_DRAWN
    played = np.asarray(t.turn_mask)
    rewards = [[reward_of(t, e, turn) if played[e, turn] else 0.0 for turn in range(TURNS)] for e in range(EPISODES)]
    np.testing.assert_allclose(turn_rewards(t, PENALTIES), rewards, rtol=1e-5)
    np.testing.assert_allclose(total_returns(t, PENALTIES), np.sum(rewards, axis=1), rtol=1e-4, atol=1e-5)
    assert not np.asarray(overlong(t, RewardRule(-0.25))).any()
    plain = np.where(played, np.asarray(t.turn.reward) - 0.25 * np.asarray(t.turn.format_error), 0.0)
    np.testing.assert_allclose(turn_rewards(t, RewardRule(-0.25)), plain, rtol=1e-5)


def test_metrics_of_all_episodes_and_of_each_task():
    half = EPISODES // 2
    parts = {"one": range(half), "two": range(half, EPISODES)}
    of_tasks = {f"{name}/{key}": x for name, part in parts.items() for key, x in expected(EPISODES_DRAWN, part).items()}
    of_tasks |= {f"{name}/episodes": half for name in parts}
    for names, more in ((("one",), {}), (("one", "two"), of_tasks)):
        found = jax.jit(trajectory_metrics, static_argnums=(1, 2))(EPISODES_DRAWN, names, GROUP_SIZE, PENALTIES)
        found = {name: float(x) for name, x in found.items()}
        assert found == pytest.approx(expected(EPISODES_DRAWN, range(EPISODES)) | more, rel=1e-5)
