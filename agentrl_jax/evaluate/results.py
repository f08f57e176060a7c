"""What an agent reaches on the levels of an eval set: its episodes, and rates with intervals.

Shapes: `n` levels, `k` sampled episodes on each.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from agentrl_jax.evaluate.baselines import level_rates, mean_turns, success_intervals
from agentrl_jax.evaluate.selectors import BestOf
from agentrl_jax.evaluate.statistics import Clusters, mean_interval, pass_all, pass_at, success_interval
from agentrl_jax.rollout.trajectory import Trajectory, level_ids
from envs_jax.budget import Baselines

STRICT = "strict_success"
"""Name of the environment information that is true where a stricter rule than that of success is fulfilled."""

Play = Callable[[float, int], Trajectory]
"""Plays every level once, from a temperature and the number of the sample."""


class Played(NamedTuple):
    """The episodes of an agent on n levels."""

    ids: list[str]
    """Hash of each level's first state."""
    greedy: Bool[np.ndarray, " n"]
    success: Bool[np.ndarray, "n k"]
    returns: Float[np.ndarray, "n k"]
    """Raw."""
    turns: Int[np.ndarray, "n k"]
    tokens: Int[np.ndarray, "n k"]
    """Sampled tokens."""
    judged: list[Sequence[Any]]
    """What a selector reads of each sample, [k][n]; empty without one."""
    strict: Bool[np.ndarray, "n k"] | None
    strict_greedy: Bool[np.ndarray, " n"] | None


def play(
    episodes: Play, temperature: float, samples: int, best: BestOf | None, report: Callable[[str], None]
) -> Played:
    """Plays every level greedily and `samples` times with a temperature."""
    greedy = episodes(0.0, 0)
    columns: dict[str, list[Any]] = {name: [] for name in ("success", "returns", "turns", "tokens", "strict")}
    judged: list[Sequence[Any]] = []
    has_strict = STRICT in greedy.turn.info
    for sample in range(samples):
        played = episodes(temperature, sample)
        columns["success"].append(played.success)
        columns["returns"].append(np.asarray(played.returns, np.float64))
        columns["turns"].append(played.num_turns)
        columns["tokens"].append(played.response.length.sum(axis=1))
        columns["strict"] += [_ever(played, STRICT)] if has_strict else []
        judged += [] if best is None else [best.judge(played)]
        if samples > 1:
            report(f"sample {sample + 1}/{samples}: {played.success.mean():.1%}")
    arrays = {name: np.stack(column, axis=1) for name, column in columns.items() if column}
    strict = arrays.pop("strict", None)
    strict_greedy = _ever(greedy, STRICT) if has_strict else None
    return Played(
        level_ids(greedy),
        np.asarray(greedy.success),
        judged=judged,
        strict=strict,
        strict_greedy=strict_greedy,
        **arrays,
    )


def rates(
    played: Played,
    known: Baselines | None,
    categories: Sequence[str] | None = None,
    *,
    clusters: bool = False,
    best: BestOf | None = None,
    best_of: Sequence[int] = (),
) -> dict[str, Any]:
    """What `eval_set.evaluate_run` describes, from `success` on, except for `seen`.

    With `clusters`, levels of one category are one cluster of the intervals, except for those of `categories`.
    """
    success, samples = played.success, played.success.shape[1]
    of_cluster = list(categories or ()) if clusters else None

    def successes(rows: Any = slice(None), of_cluster: Clusters = None) -> dict[str, Any]:
        parts = {"success": success[rows].mean(axis=1), "success_greedy": played.greedy[rows]}
        return {name: success_interval(of_levels, clusters=of_cluster) for name, of_levels in parts.items()}

    result: dict[str, Any] = {
        **successes(of_cluster=of_cluster),
        "return": mean_interval(played.returns.mean(axis=1), clusters=of_cluster),
        "mean_turns": float(played.turns.mean()),
        "mean_tokens": float(played.tokens.mean()),
        "outcomes": {
            "success": success.mean(axis=1).tolist(),
            "success_greedy": played.greedy.astype(float).tolist(),
            "samples": success.astype(int).tolist(),
        },
        "levels_digest": hashlib.sha256("".join(played.ids).encode()).hexdigest(),
    }
    if samples > 1:
        for name, probability in (("pass_at", pass_at), ("pass_all", pass_all)):
            parts = {k: probability(success, k) for k in powers(samples)}
            result[name] = {str(k): success_interval(part, clusters=of_cluster) for k, part in parts.items()}
    if best is not None:
        parts = {k: best.success(success, played.judged, k) for k in best_of}
        chosen = {str(k): success_interval(part, clusters=of_cluster) for k, part in parts.items()}
        result["best_of"] = {"selector": best.selector, "success": chosen}
    if played.strict is not None and played.strict_greedy is not None:
        strict = {STRICT: played.strict.mean(axis=1), f"{STRICT}_greedy": played.strict_greedy}
        result |= {name: success_interval(x, clusters=of_cluster) for name, x in strict.items()}
    if known is not None:
        result |= success_intervals(known, of_cluster) | {"optimal_is": known.optimal_is}
        result["baseline_turns"] = mean_turns(known)
        result["outcomes"] |= level_rates(known)
        result["gap_closed"] = gap_closed(success.mean(), known.random.mean(), known.optimal.mean())
    if categories is not None:
        kinds = np.array(categories)
        result["outcomes"]["categories"] = list(categories)
        result["categories"] = {name: successes(kinds == name) for name in sorted(set(kinds.tolist()))}
    return result


def gap_closed(success: float, random: float, optimal: float) -> float | None:
    """The share of the difference between random and optimal play that an agent closes; None if there is none."""
    gap = optimal - random
    return float((success - random) / gap) if gap > 0 else None


def powers(samples: int) -> list[int]:
    """1, 2, 4, ... up to a number of samples, and the number itself."""
    return sorted({*(2**power for power in range(samples.bit_length())), samples})


def _ever(played: Trajectory, name: str) -> Bool[np.ndarray, " n"]:
    """Whether a flag of the environment was true after some turn of an episode."""
    turns = np.arange(played.turn.info[name].shape[1]) < played.num_turns[:, None]
    return np.any(turns & (played.turn.info[name] > 0), axis=1)
