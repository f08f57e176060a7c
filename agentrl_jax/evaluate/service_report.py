"""Metrics about the services used in a rollout."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentrl_jax.parallel import hosts
from agentrl_jax.rollout.envs.host_episodes import Failure, Report
from agentrl_jax.rollout.trajectory import Trajectory
from agentrl_jax.services.bridge import RETRIES


def service_metrics(
    trajectory: Trajectory, tasks: Sequence[int], report: Report, seconds: float, restarts: int
) -> dict[str, float]:
    """Metrics of the episodes of the `tasks` on the host, in an iteration whose rollout took `seconds`.

    env/failed_share: share of failed episodes; env/failed_turns: their turns, the failed one included; env/retries:
    instances that were lost and replaced. Episodes with retries are compared with the others, both without failed
    episodes, null if there are none: env/retried_share, env/retried_success and env/other_success, env/retried_turns
    and env/other_turns. Differences show that failures affect certain episodes more, and then dropping failed ones
    causes bias. env/lone_share: share of episodes in groups with fewer than two valid members, which are dropped too.
    env/restarts: restarts, since the iteration before, of the run's servers that ended or hung; env/calls: callbacks;
    env/wait_share: share of the rollout's time spent waiting for them.
    """
    rows: Any = hosts.fetch(
        {
            "failed": trajectory.failed,
            "success": trajectory.success,
            "turns": trajectory.num_turns,
            "retries": trajectory.turn.info[RETRIES].sum(axis=1),
            "group": trajectory.ids.group,
            "task": trajectory.ids.task,
        }
    )
    on_host = np.isin(rows["task"], tasks)
    rows = {name: column[on_host] for name, column in rows.items()}
    failed, retried = rows["failed"], rows["retries"] > 0
    _, group, size = np.unique(rows["group"], return_inverse=True, return_counts=True)
    valid = np.bincount(group, weights=~failed)[group]
    subsets = {"retried": retried & ~failed, "other": ~retried & ~failed}
    return {
        "env/failed_share": float(failed.mean()),
        "env/failed_turns": _mean(rows["turns"][failed]),
        "env/retries": float(rows["retries"].sum()),
        "env/retried_share": float(subsets["retried"].mean()),
        **{
            f"env/{subset}_{name}": _mean(rows[name][of])
            for subset, of in subsets.items()
            for name in ("success", "turns")
        },
        "env/lone_share": float(((size[group] > 1) & (valid < 2) & ~failed).mean()),
        "env/restarts": float(restarts),
        "env/calls": float(report.calls),
        "env/wait_share": report.seconds / max(seconds, 1e-9),
    }


def of_all_hosts(report: Report, restarts: int) -> tuple[Report, int]:
    """The report and the restarts of the services of all hosts; the time is that of the slowest."""
    gathered = hosts.gather([report.calls, report.seconds, report.failures, restarts])
    calls, seconds, failures, starts = zip(*gathered)
    listed = [Failure(*failure) for of_host in failures for failure in of_host]
    return Report(sum(calls), max(seconds), listed), sum(starts)


def failure_rows(step: int, failures: Sequence[Failure]) -> list[dict[str, Any]]:
    """Rows of failures.jsonl: the dropped episodes, and why each was dropped."""
    return [{"step": step, **failure._asdict()} for failure in failures]


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("nan")
