"""The rules: each judges the evidence and returns a `Result`.

A rate is above a bound if the lower end of its 99.9 % interval (Wilson 1927) is; where many rates are compared, the
level is corrected by their number (Bonferroni).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import stats

from envs_jax.checks.evidence import Evidence
from envs_jax.checks.play import Episodes
from envs_jax.checks.report import Result, skipped, verdict
from envs_jax.environment import NO_PIECE

ALPHA = 0.001
"""Probability that chance alone breaks a bound that holds exactly."""


def finite_rewards(evidence: Evidence) -> Result:
    """Every reward is a finite number."""
    return _no_step(evidence, "finite_rewards", "not_finite", "a reward is not a finite number", _reward)


def reward_range(evidence: Evidence) -> Result:
    """Every finite reward is inside the declared range."""
    if evidence.span is None:
        return skipped("reward_range", "the environment declares no range of rewards; define reward_range(params)")
    low, high = evidence.span
    rewards = [run.rewards[np.isfinite(run.rewards)] for run in _all_runs(evidence).values()]
    ends = [end for some in rewards if some.size for end in (some.min(), some.max())]
    numbers = {"declared": [low, high], "found": [float(min(ends)), float(max(ends))] if ends else None}
    reason = f"a reward is outside the declared range from {low:g} to {high:g}"
    return _no_step(evidence, "reward_range", "out_of_range", reason, _reward, numbers)


def no_reward_after_end(evidence: Evidence) -> Result:
    """A finished episode pays nothing."""
    reason = "an action after the end of the episode is rewarded"
    return _no_step(evidence, "no_reward_after_end", "after_end", reason, _reward)


def absorbing_end(evidence: Evidence) -> Result:
    """An action after the end changes neither the state nor its text."""
    reason = "an action after the end of the episode changes the state"
    return _no_step(evidence, "absorbing_end", "changed", reason, lambda run, row, step: "another state")


def success_terminates(evidence: Evidence) -> Result:
    """A solved task ends the episode."""
    name, reason = "success_terminates", "the task is solved, but the episode goes on"
    for row in np.flatnonzero(evidence.start_flaws["not_terminated"])[:1]:
        return verdict(name, reason, {}, _start(evidence, row, "solved at the start"))
    return _no_step(evidence, name, "not_terminated", reason, lambda run, row, step: "success without termination")


def observation(evidence: Evidence) -> Result:
    """Piece ids are inside the table or padding, give a text, and occur at most as often as declared."""
    name, env, texts = "observation", evidence.env, evidence.start_texts
    numbers = {"pieces": len(env.pieces), "length": texts.shape[1]}
    reason = f"an observation has a piece id outside {NO_PIECE} to {len(env.pieces) - 1}, or no piece at all"
    for row in np.flatnonzero(evidence.start_flaws["bad_text"])[:1]:
        return verdict(name, reason, numbers, _start(evidence, row, texts[row].tolist() if row < len(texts) else "ids"))
    found = _no_step(evidence, name, "bad_text", reason, lambda run, row, step: "ids without a text", numbers)
    if found.status == "fail":
        return found
    for row, ids in enumerate(texts):
        known = ids[ids != NO_PIECE]
        counts = np.bincount(known, minlength=len(env.pieces))
        over = np.flatnonzero(counts > env.piece_limits) if env.piece_limits else ()
        for piece in over:
            what = f"{counts[piece]} times the piece {env.pieces[piece]!r}"
            reason = f"an observation has more of a piece than the {env.piece_limits[piece]} of piece_limits"
            return verdict(name, reason, numbers, _start(evidence, row, what))
        try:
            "".join(env.pieces[piece] for piece in known).encode()
        except UnicodeEncodeError as error:
            return verdict(name, "an observation is no Unicode text", numbers, _start(evidence, row, str(error)))
    return verdict(name, "", numbers)


def determinism(evidence: Evidence) -> Result:
    """Equal seeds and actions give equal states, texts and rewards, whatever the batch and the place in it."""
    numbers: dict[str, Any] = {f"different_{what}": len(rows) for what, rows in evidence.differs.items()}
    for what, rows in evidence.differs.items():
        if len(rows):
            row = int(rows.min())
            actions = None if what == "start" else evidence.runs["random"]
            case = _start(evidence, row, f"different {what}") if actions is None else None
            case = case or _case(evidence, "random", evidence.runs["random"], row, None, f"different {what}")
            reason = f"{len(rows)} seeds give a different {what} in another batch, at another place in it"
            return verdict("determinism", reason, numbers, case)
    return verdict("determinism", "", numbers)


def null_floor(evidence: Evidence) -> Result:
    """No level is solved before the first action."""
    solved = np.flatnonzero(evidence.start_solved)
    reason = f"{len(solved)} levels are solved before the first action" if len(solved) else ""
    case = _start(evidence, solved[0], "solved at the start") if len(solved) else None
    return verdict("null_floor", reason, {"success": float(evidence.start_solved.mean())}, case)


def constant_floor(evidence: Evidence) -> Result:
    """No action, taken again and again, succeeds more often than declared."""
    runs = {name: run for name, run in evidence.runs.items() if name.startswith("constant ")}
    bound, alpha = evidence.floors.constant, ALPHA / len(runs)
    worst = max(runs, key=lambda name: _solved(runs[name]).mean())
    numbers: dict[str, Any] = {"success": float(_solved(runs[worst]).mean()), "bound": bound, "actions": len(runs)}
    numbers |= {"most_successful": worst.removeprefix("constant "), "episodes_each": len(runs[worst].steps)}
    numbers |= {"why": evidence.floors.why} if numbers["success"] > 0.5 and evidence.floors.why else {}
    return _bounded(evidence, "constant_floor", worst, runs[worst], bound, alpha, numbers)


def repeat_last_floor(evidence: Evidence) -> Result:
    """One random action, repeated, succeeds at most as often as declared."""
    run, bound = evidence.runs["repeat_last"], evidence.floors.repeat_last
    numbers = {"success": float(_solved(run).mean()), "bound": bound}
    return _bounded(evidence, "repeat_last_floor", "repeat_last", run, bound, ALPHA, numbers)


def random_floor(evidence: Evidence) -> Result:
    """Random actions succeed at most as often as declared, and clearly less often than the reference."""
    run, floors = evidence.runs["random"], evidence.floors
    numbers: dict[str, Any] = {"success": float(_solved(run).mean()), "bound": floors.random}
    numbers |= {"why": floors.why} if numbers["success"] > 0.5 and floors.why else {}
    optimal = _reference_success(evidence)
    if optimal is not None:
        numbers |= {"optimal": optimal, "least_gap": floors.gap}
    found = _bounded(evidence, "random_floor", "random", run, floors.random, ALPHA, numbers)
    if found.status == "fail" or optimal is None:
        return found
    low = rate_interval(_solved(run))[0]
    reason = f"the reference succeeds on {optimal:.1%}, less than {floors.gap:.1%} above random actions"
    return verdict("random_floor", reason if optimal - low < floors.gap else "", numbers)


def reference(evidence: Evidence) -> Result:
    """The reference solution, executed through the environment, solves every level and earns most."""
    solution, run = evidence.reference, evidence.reference_run
    if solution is None or run is None:
        return skipped("reference", "no reference solution is known")
    known = np.flatnonzero(solution.lengths >= 0)
    if not len(known):
        return skipped("reference", "the reference has no solution of any level")
    numbers: dict[str, Any] = {"levels": len(known), "mean_return": float(run.returns[known].mean())}
    numbers["success"] = float(_solved(run)[known].mean())
    if solution.success is None:
        wrong = known[run.solved_at[known] != solution.lengths[known]]
        for row in wrong[:1]:
            at = run.solved_at[row]
            found = f"solved after {at} actions" if at >= 0 else "not solved"
            reason = f"{len(wrong)} reference solutions do not solve their level in as many actions as they have"
            return verdict(
                "reference", reason, numbers, _case(evidence, "reference", run, row, solution.lengths[row], found)
            )
    else:
        exact = float(solution.success[known].mean())
        low, high = rate_interval(_solved(run)[known])
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
            return verdict("reference", reason, numbers, _start(evidence, row, found))
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
        numbers |= {"searched": int(search.complete.sum()), "situations": int(search.situations.sum())}
        numbers |= {"transitions": search.transitions, "most_situations": int(search.situations.max())}
        numbers["random_transitions"] = search.random
        stuck = np.flatnonzero(search.complete & (search.distance < 0))
        cases += [(int(row), f"none of {search.situations[row]} situations is a success") for row in stuck]
    if (solution is None or not (solution.lengths >= 0).any()) and (search is None or not search.complete.any()):
        return skipped("goal_reachable", f"no planner is known, and no search was complete: {evidence.no_search}")
    rows = sorted(cases)
    reason = f"{len({row for row, _ in rows})} levels have no solution" if rows else ""
    return verdict("goal_reachable", reason, numbers, _start(evidence, *rows[0]) if rows else None)


RULES: tuple[Callable[[Evidence], Result], ...] = (
    finite_rewards,
    reward_range,
    no_reward_after_end,
    absorbing_end,
    success_terminates,
    observation,
    determinism,
    null_floor,
    constant_floor,
    repeat_last_floor,
    random_floor,
    reference,
    goal_reachable,
)


def difficulty(evidence: Evidence) -> list[dict[str, Any]]:
    """Number of levels by the length of a shortest solution, and the success of random actions on them."""
    lengths = None
    if evidence.reference is not None:
        lengths = evidence.reference.lengths
    elif evidence.search is not None:
        lengths = np.where(evidence.search.complete | (evidence.search.distance >= 0), evidence.search.distance, -1)
    if lengths is None:
        return []
    solved = _solved(evidence.runs["random"])[: len(lengths)]
    return [
        {
            "length": int(length) if length >= 0 else None,
            "levels": int((lengths == length).sum()),
            "random": float(solved[lengths == length].mean()),
        }
        for length in sorted(set(lengths.tolist()), key=lambda length: (length < 0, length))
    ]


def _all_runs(evidence: Evidence) -> dict[str, Episodes]:
    more = {} if evidence.reference_run is None else {"reference": evidence.reference_run}
    return evidence.runs | more


def _solved(run: Episodes) -> np.ndarray:
    return run.solved_at >= 0


def rate_interval(outcomes: np.ndarray, alpha: float = ALPHA) -> tuple[float, float]:
    """Returns the ends of the 1 - `alpha` interval of a rate (Wilson 1927), given outcomes bool[N]."""
    interval = stats.binomtest(int(outcomes.sum()), len(outcomes)).proportion_ci(1 - alpha, method="wilson")
    return float(interval.low), float(interval.high)


def _reference_success(evidence: Evidence) -> float | None:
    """Success of the reference within `limit` actions, on the levels of which it is known."""
    solution, run = evidence.reference, evidence.reference_run
    if solution is None or run is None:
        return None
    if solution.success is not None:
        return float(_solved(run).mean())
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
        error = more.std() / np.sqrt(len(rows)) * stats.norm.isf(alpha)
        if more.mean() - error > 1e-5:
            return f"{name} earns {more.mean():.3g} more than the reference on average over {len(rows)} levels"
    return ""


def _bounded(
    evidence: Evidence, name: str, policy: str, run: Episodes, bound: float, alpha: float, numbers: dict[str, Any]
) -> Result:
    solved = _solved(run)
    if rate_interval(solved, alpha)[0] <= bound:
        return verdict(name, "", numbers)
    row = int(np.argmax(solved))
    case = _case(evidence, policy, run, row, run.solved_at[row], f"solved after {run.solved_at[row]} actions")
    return verdict(name, f"{policy} succeeds on {solved.mean():.1%}; expected at most {bound:.1%}", numbers, case)


def _reward(run: Episodes, row: int, step: int) -> Any:
    return f"reward {run.rewards[row, step - 1]:g}"


def _no_step(
    evidence: Evidence,
    name: str,
    flaw: str,
    reason: str,
    found: Callable[[Episodes, int, int], Any],
    numbers: dict[str, Any] | None = None,
) -> Result:
    """Fails with the first step of any policy, or of the search, that has a flaw."""
    runs = _all_runs(evidence)
    steps = sum(int(run.steps.sum()) for run in runs.values())
    numbers = {"steps": steps + (evidence.search.transitions if evidence.search else 0), **(numbers or {})}
    for policy, run in runs.items():
        for row in np.flatnonzero(run.broken[flaw])[:1]:
            step = int(run.broken[flaw][row])
            return verdict(name, reason, numbers, _case(evidence, policy, run, row, step, found(run, row, step)))
    if evidence.search is not None and (case := evidence.search.broken[flaw]) is not None:
        row, actions = case
        names = [evidence.env.actions[action] for action in actions]
        data = {"seed": int(evidence.seeds[row]), "policy": "search", "actions": names, "found": reason}
        return verdict(name, reason, numbers, data)
    return verdict(name, "", numbers)


def _case(evidence: Evidence, policy: str, run: Episodes, row: int, step: int | None, found: Any) -> dict[str, Any]:
    steps = int(run.steps[row] if step is None else step)
    ids = [int(action) for action in run.actions[row, :steps]]
    names = [evidence.env.actions[action] if 0 <= action < len(evidence.env.actions) else action for action in ids]
    return {"seed": int(evidence.seeds[row]), "policy": policy, "actions": names, "found": found}


def _start(evidence: Evidence, row: int, found: Any) -> dict[str, Any]:
    return {"seed": int(evidence.seeds[row]), "policy": None, "actions": [], "found": found}
