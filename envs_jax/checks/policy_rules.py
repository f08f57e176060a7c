"""The rules about policies, solutions and levels.

A rate is above a bound if the lower end of its 99.9 % interval is; where many rates are compared, the level is
corrected by their number (Bonferroni).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool
from scipy import special

from envs_jax.checks.evidence import CONSTANT, FEWEST_SEEDS, ROUNDING, Evidence, most_successful
from envs_jax.checks.play import Episodes
from envs_jax.checks.reachable import SITUATIONS_OF_LEVEL
from envs_jax.checks.report import Result, skipped, verdict

ALPHA = 0.001
"""Probability that chance alone breaks a bound that holds exactly."""

FEWEST_OF_KIND = 32
"""Seeds with a success, and without, from which on their rewards are compared."""


def null_floor(evidence: Evidence) -> Result:
    """No level is solved before the first action."""
    solved = np.flatnonzero(evidence.start_solved)
    reason = f"{len(solved)} levels are solved before the first action" if len(solved) else ""
    case = evidence.start_case(solved[0], "solved at the start") if len(solved) else None
    return verdict("null_floor", reason, {"success": float(evidence.start_solved.mean())}, case)


def constant_floor(evidence: Evidence) -> Result:
    """No action, taken again and again, succeeds more often than declared."""
    lengths = [len(run.steps) for name, run in evidence.runs.items() if name.startswith(CONSTANT)]
    bound, worst, each = evidence.floors.constant, most_successful(evidence.runs), min(lengths)
    run = evidence.runs[worst]
    numbers: dict[str, Any] = {"success": float(run.solved.mean()), "bound": bound, "actions": len(lengths)}
    numbers |= {"most_successful": worst.removeprefix(CONSTANT), "episodes_each": each, "episodes": len(run.steps)}
    numbers |= {"why": evidence.floors.why} if numbers["success"] > 0.5 and evidence.floors.why else {}
    # The seeds that it alone has played did not choose it, so that only its own rate is compared there.
    further = run.solved[each:]
    tests = [(run.solved[:each], ALPHA / len(lengths)), *([(further, ALPHA)] if further.size else [])]
    return _bounded(evidence, "constant_floor", worst, run, bound, tests, numbers)


def repeat_last_floor(evidence: Evidence) -> Result:
    """One random action, repeated, succeeds at most as often as declared."""
    run, bound = evidence.runs["repeat_last"], evidence.floors.repeat_last
    numbers = {"success": float(run.solved.mean()), "bound": bound}
    return _bounded(evidence, "repeat_last_floor", "repeat_last", run, bound, [(run.solved, ALPHA)], numbers)


def random_floor(evidence: Evidence) -> Result:
    """Random actions succeed at most as often as declared, and clearly less often than the reference."""
    run, floors = evidence.runs["random"], evidence.floors
    numbers: dict[str, Any] = {"success": float(run.solved.mean()), "bound": floors.random}
    numbers |= {"why": floors.why} if numbers["success"] > 0.5 and floors.why else {}
    optimal = _reference_success(evidence)
    if optimal is not None:
        numbers |= {"optimal": optimal, "least_gap": floors.gap}
    found = _bounded(evidence, "random_floor", "random", run, floors.random, [(run.solved, ALPHA)], numbers)
    if found.status == "fail" or optimal is None:
        return found
    low = rate_interval(run.solved)[0]
    reason = f"the reference succeeds on {optimal:.1%}, less than {floors.gap:.1%} above random actions"
    return verdict("random_floor", reason if optimal - low < floors.gap else "", numbers)


def reward_follows_success(evidence: Evidence) -> Result:
    """Episodes that solve the task earn more, on average, than those that do not."""
    # Episodes of a seed are no independent ones, so that the unit is a seed: its mean over the policies.
    sums, counts = np.zeros((2, len(evidence.seeds))), np.zeros((2, len(evidence.seeds)))
    for run in evidence.all_runs.values():
        for kind in (False, True):
            rows = np.flatnonzero((run.solved == kind) & np.isfinite(run.returns))
            sums[int(kind), rows] += run.returns[rows]
            counts[int(kind), rows] += 1
    unsolved, solved = (total[count > 0] / count[count > 0] for total, count in zip(sums, counts))
    if min(len(unsolved), len(solved)) < FEWEST_OF_KIND:
        reason = f"{len(solved)} seeds have episodes with a success and {len(unsolved)} without; at least "
        return skipped("reward_follows_success", f"{reason}{FEWEST_OF_KIND} of each are compared")
    numbers = {"return_with_success": float(solved.mean()), "return_without": float(unsolved.mean())}
    error = -special.ndtri(ALPHA) * np.sqrt(solved.var() / len(solved) + unsolved.var() / len(unsolved))
    low, high = numbers["return_without"], numbers["return_with_success"]
    reason = f"episodes with a success earn {high:.3g} on average, not more than the {low:.3g} of the others"
    return verdict("reward_follows_success", reason if high - low + error <= ROUNDING else "", numbers)


def different_starts(evidence: Evidence) -> Result:
    """Episodes do not all start alike, unless the environment declares it."""
    name, numbers = "different_starts", {"different": evidence.different}
    if len(evidence.seeds) < FEWEST_SEEDS:
        return skipped(name, f"{len(evidence.seeds)} seeds are too few to tell; expected {FEWEST_SEEDS}")
    same = evidence.different == 1 and not evidence.single_start
    reason = f"all {len(evidence.seeds)} seeds start alike; expected levels that depend on the key, or single_start"
    return verdict(name, reason if same else "", numbers)


def reference(evidence: Evidence) -> Result:
    """The reference solution, executed through the environment, solves every level and earns most."""
    solution, run = evidence.reference, evidence.reference_run
    if solution is None or run is None:
        return skipped("reference", "no reference solution is known")
    known = np.flatnonzero(solution.lengths >= 0)
    if not len(known):
        return skipped("reference", "the reference has no solution of any level")
    numbers: dict[str, Any] = {"levels": len(known), "mean_return": float(run.returns[known].mean())}
    numbers["success"] = float(run.solved[known].mean())
    if solution.success is None:
        wrong = known[run.solved_at[known] != solution.lengths[known]]
        for row in wrong[:1]:
            at = run.solved_at[row]
            found = f"solved after {at} actions" if at >= 0 else "not solved"
            reason = f"{len(wrong)} reference solutions do not solve their level in as many actions as they have"
            return verdict(
                "reference", reason, numbers, evidence.case("reference", run, row, solution.lengths[row], found)
            )
    else:
        exact = float(solution.success[known].mean())
        low, high = rate_interval(run.solved[known])
        numbers["exact_success"] = exact
        if not low <= exact <= high:
            reason = f"the optimal policy succeeds on {low:.2%} to {high:.2%} of the episodes; expected {exact:.2%}"
            return verdict("reference", reason, numbers)
    if evidence.search is not None:
        count = min(len(evidence.search.distance), len(solution.lengths))
        shortest, length = evidence.search.distance[:count], solution.lengths[:count]
        for row in np.flatnonzero((shortest >= 0) & (length > shortest))[:1]:
            reason = "the reference is longer than the shortest solution"
            found = f"{length[row]} actions, while {shortest[row]} are enough"
            return verdict("reference", reason, numbers, evidence.start_case(row, found))
    return verdict("reference", _earns_more(evidence, run, known), numbers)


def goal_reachable(evidence: Evidence) -> Result:
    """Every level has a solution."""
    solution, search = evidence.reference, evidence.search
    numbers: dict[str, Any] = {}
    cases: list[tuple[int, str]] = []
    if evidence.levels is not None:
        numbers["different_levels"] = evidence.levels
    if solution is not None:
        proven = solution.complete & (solution.lengths < 0)
        numbers["planned"] = int((solution.lengths >= 0).sum())
        numbers["given_up"] = int((~solution.complete & (solution.lengths < 0)).sum())
        cases += [(int(row), "the planner proves that there is no solution") for row in np.flatnonzero(proven)]
    if search is not None:
        numbers |= {"searched": len(search.complete), "searched_wholly": int(search.complete.sum())}
        numbers["situations"] = int(search.situations.sum())
        numbers |= {"transitions": search.transitions, "most_situations": int(search.situations.max())}
        numbers["random_transitions"] = search.random
        numbers["solved_by_search"] = int((search.distance >= 0).sum())
        most = int(evidence.params.max_steps_in_episode)
        stuck = np.flatnonzero(search.complete & (search.distance < 0))
        none = "none of {} situations within {} actions is a success"
        cases += [(int(row), none.format(search.situations[row], most)) for row in stuck]
    planned = solution is not None and (solution.lengths >= 0).any()
    if not planned and (search is None or not (search.complete | (search.distance >= 0)).any()):
        why = evidence.no_search or f"all were given up after {SITUATIONS_OF_LEVEL} situations"
        return skipped("goal_reachable", f"no planner is known, and no search has a result: {why}")
    rows = sorted(cases)
    reason = f"{len({row for row, _ in rows})} levels have no solution" if rows else ""
    return verdict("goal_reachable", reason, numbers, evidence.start_case(*rows[0]) if rows else None)


def difficulty(evidence: Evidence) -> list[dict[str, Any]]:
    """Number of levels by the length of a shortest solution, and the success of random actions on them."""
    lengths = None
    if evidence.reference is not None:
        lengths = evidence.reference.lengths
    elif evidence.search is not None:
        lengths = np.where(evidence.search.complete | (evidence.search.distance >= 0), evidence.search.distance, -1)
    if lengths is None:
        return []
    solved = evidence.runs["random"].solved[: len(lengths)]
    return [
        {
            "length": int(length) if length >= 0 else None,
            "levels": int((lengths == length).sum()),
            "random": float(solved[lengths == length].mean()),
        }
        for length in sorted(set(lengths.tolist()), key=lambda length: (length < 0, length))
    ]


def rate_interval(outcomes: Bool[np.ndarray, " N"], alpha: float = ALPHA) -> tuple[float, float]:
    """Returns the ends of the 1 - `alpha` interval of a rate (Wilson 1927), given outcomes bool[N]."""
    from scipy import stats  # takes a second

    interval = stats.binomtest(int(outcomes.sum()), len(outcomes)).proportion_ci(1 - alpha, method="wilson")
    return float(interval.low), float(interval.high)


def _reference_success(evidence: Evidence) -> float | None:
    """Success of the reference within `limit` actions, on the levels of which it is known.

    Without a reference, it is that of the shortest solutions that the search found, if transitions are deterministic.
    """
    solution, run, search = evidence.reference, evidence.reference_run, evidence.search
    if solution is None or run is None:
        if search is None or search.random or not (search.complete | (search.distance >= 0)).all():
            return None
        return float(((search.distance >= 0) & (search.distance <= evidence.limit)).mean())
    if solution.success is not None:
        return float(run.solved.mean())
    known = solution.complete | (solution.lengths >= 0)
    within = (solution.lengths >= 0) & (solution.lengths <= evidence.limit)
    return float(within[known].mean()) if known.any() else None


def _earns_more(evidence: Evidence, best: Episodes, known: np.ndarray) -> str:
    """Says which policy earns more than the reference on the same levels; empty if none does."""
    alpha = ALPHA / len(evidence.runs)
    for name, run in evidence.runs.items():
        rows = known[known < len(run.steps)]
        more = run.returns[rows] - best.returns[rows]
        if not len(rows) or not np.isfinite(more).all():
            continue
        error = more.std() / np.sqrt(len(rows)) * -special.ndtri(alpha)
        if more.mean() - error > 1e-5:
            return f"{name} earns {more.mean():.3g} more than the reference on average over {len(rows)} levels"
    return ""


def _bounded(
    evidence: Evidence,
    name: str,
    policy: str,
    run: Episodes,
    bound: float,
    tests: Sequence[tuple[Bool[np.ndarray, " n"], float]],
    numbers: dict[str, Any],
) -> Result:
    """`tests` are outcomes of different episodes, each with the probability that chance alone exceeds the bound."""
    solved = run.solved
    if all(rate_interval(outcomes, alpha)[0] <= bound for outcomes, alpha in tests):
        return verdict(name, "", numbers)
    row = int(np.argmax(solved))
    case = evidence.case(policy, run, row, run.solved_at[row], f"solved after {run.solved_at[row]} actions")
    return verdict(name, f"{policy} succeeds on {solved.mean():.1%}; expected at most {bound:.1%}", numbers, case)
