"""What a rollout tells of the services that it played in. Shapes: `E` episodes, `T` turns."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from agentrl_jax.rollout.envs.host_episodes import Failure, Report
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.services.bridge import RETRIES


def service_metrics(trajectory: Trajectory, report: Report, seconds: float, restarts: int) -> dict[str, float]:
    """Metrics of one iteration, on the host.

    Args:
        trajectory: E episodes.
        report: of the desk that they were played at.
        seconds: that the rollout took.
        restarts: of servers of the run's own.

    Returns:
        env/failed_share: of the episodes; env/failed_turns: turns that they had, the failed one included; env/retries:
        instances that were lost and replaced. Retried episodes beside the others, failed ones in neither, null where
        there are none: env/retried_share, env/retried_success and env/other_success, env/retried_turns and
        env/other_turns; their differences tell whether trouble comes to particular episodes, which dropping them would
        then bias. env/lone_share: episodes of groups with fewer than two members left, which are dropped too.
        env/restarts: times that a server of the run's own was started again since the iteration before, as it had ended
        or hung; env/calls: callbacks; env/wait_share: of the rollout's time, in which the program waited for them.
    """
    rows: Any = jax.device_get(
        {
            "failed": trajectory.failed,
            "success": trajectory.success,
            "turns": trajectory.num_turns,
            "retries": trajectory.turn.info[RETRIES].sum(axis=1),
            "group": trajectory.ids.group,
        }
    )
    failed, retried = rows["failed"], rows["retries"] > 0
    _, group, size = np.unique(rows["group"], return_inverse=True, return_counts=True)
    valid = np.bincount(group, weights=~failed)[group]
    kinds = {"retried": retried & ~failed, "other": ~retried & ~failed}
    return {
        "env/failed_share": float(failed.mean()),
        "env/failed_turns": _mean(rows["turns"][failed]),
        "env/retries": float(rows["retries"].sum()),
        "env/retried_share": float(kinds["retried"].mean()),
        **{f"env/{kind}_success": _mean(rows["success"][chosen]) for kind, chosen in kinds.items()},
        **{f"env/{kind}_turns": _mean(rows["turns"][chosen]) for kind, chosen in kinds.items()},
        "env/lone_share": float(((size[group] > 1) & (valid < 2) & ~failed).mean()),
        "env/restarts": float(restarts),
        "env/calls": float(report.calls),
        "env/wait_share": report.seconds / max(seconds, 1e-9),
    }


def failure_rows(step: int, failures: Sequence[Failure]) -> list[dict[str, Any]]:
    """Rows of failures.jsonl: which episodes were dropped, and why."""
    return [{"step": step, **failure._asdict()} for failure in failures]


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")
