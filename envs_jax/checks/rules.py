"""The rules about single steps, texts and determinism, and the list of all rules.

Each rule judges the evidence and returns a `Result`; its name is that of the function.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from envs_jax.checks.evidence import Evidence
from envs_jax.checks.play import Episodes
from envs_jax.checks.policy_rules import (
    constant_floor,
    different_starts,
    goal_reachable,
    null_floor,
    random_floor,
    reference,
    repeat_last_floor,
    reward_follows_success,
)
from envs_jax.checks.report import Result, skipped, verdict
from envs_jax.environment import NO_PIECE


def finite_rewards(evidence: Evidence) -> Result:
    """Every reward is a finite number."""
    return _no_step(evidence, "finite_rewards", "not_finite", "a reward is not a finite number", _reward)


def reward_range(evidence: Evidence) -> Result:
    """Every finite reward is inside the declared range."""
    if evidence.span is None:
        return skipped("reward_range", "the environment declares no range of rewards; define reward_range(params)")
    low, high = evidence.span
    rewards = [run.rewards[np.isfinite(run.rewards)] for run in evidence.all_runs.values()]
    ends = [end for some in rewards if some.size for end in (some.min(), some.max())]
    ends += [end for end in (evidence.search.rewards if evidence.search else ()) if np.isfinite(end)]
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
        return verdict(name, reason, {}, evidence.start_case(row, "solved at the start"))
    return _no_step(evidence, name, "not_terminated", reason, lambda run, row, step: "success without termination")


def step_result(evidence: Evidence) -> Result:
    """A step returns an observation of the observation space, and the end and the success of the state it leads to."""
    name = "step_result"
    for flag, reason in (
        ("bad_array", "the observation that a step returns is outside of the observation space"),
        ("other_end", "the terminated that a step returns is not that of its state"),
        ("other_success", 'the info["success"] that a step returns is not that of its state'),
    ):
        found = _no_step(evidence, name, flag, reason, lambda run, row, step: "another result of the step")
        if found.status == "fail":
            break
    return found


def action_is_effective(evidence: Evidence) -> Result:
    """An action that solves the task is effective; so is one that changes an environment's own `state_hash`."""
    reason = (
        'info["action_is_effective"] is False of an action that solves the task or changes the situation, or True '
        "after the end"
    )
    found = "what the state does not say"
    return _no_step(evidence, "action_is_effective", "other_effect", reason, lambda run, row, step: found)


def limit_of_steps(evidence: Evidence) -> Result:
    """Every action counts in `time`, and an episode ends after `max_steps_in_episode` of them."""
    reason = "the state's time does not count an action, or the episode goes on after max_steps_in_episode actions"
    return _no_step(evidence, "limit_of_steps", "not_counted", reason, lambda run, row, step: f"after {step} actions")


def observation(evidence: Evidence) -> Result:
    """Piece ids are inside the table or padding, give a text, and occur at most as often as declared."""
    name, env, texts = "observation", evidence.env, evidence.start_texts
    numbers = {"pieces": len(env.pieces), "length": texts.shape[1]}
    reason = f"an observation has a piece id outside {NO_PIECE} to {len(env.pieces) - 1}, or no piece at all"
    for row in np.flatnonzero(evidence.start_flaws["bad_text"])[:1]:
        return verdict(
            name, reason, numbers, evidence.start_case(row, texts[row].tolist() if row < len(texts) else "ids")
        )
    found = _no_step(evidence, name, "bad_text", reason, lambda run, row, step: "ids without a text", numbers)
    if found.status == "fail":
        return found
    reason = "an observation after a step has more of a piece than piece_limits"
    found = _no_step(evidence, name, "many_pieces", reason, lambda run, row, step: "too many of a piece", numbers)
    if found.status == "fail":
        return found
    for row, ids in enumerate(texts):
        known = ids[ids != NO_PIECE]
        counts = np.bincount(known, minlength=len(env.pieces))
        over = np.flatnonzero(counts > env.piece_limits) if env.piece_limits else ()
        for piece in over:
            what = f"{counts[piece]} times the piece {env.pieces[piece]!r}"
            reason = f"an observation has more of a piece than the {env.piece_limits[piece]} of piece_limits"
            return verdict(name, reason, numbers, evidence.start_case(row, what))
        try:
            "".join(env.pieces[piece] for piece in known).encode()
        except UnicodeEncodeError as error:
            return verdict(name, "an observation is no Unicode text", numbers, evidence.start_case(row, str(error)))
    return verdict(name, "", numbers)


def determinism(evidence: Evidence) -> Result:
    """Equal seeds and actions give equal states, texts and rewards, whatever the batch and the place in it."""
    numbers = {f"different_{what}": len(rows) for what, rows in evidence.differs.items()}
    for what, rows in evidence.differs.items():
        if len(rows):
            row, found = int(rows.min()), f"different {what}"
            run = evidence.runs["random"]
            case = (
                evidence.start_case(row, found) if what == "start" else evidence.case("random", run, row, None, found)
            )
            reason = f"seeds that differ in their {what} in another batch, at another place in it: {len(rows)}"
            return verdict("determinism", reason, numbers, case)
    return verdict("determinism", "", numbers)


RULES: tuple[Callable[[Evidence], Result], ...] = (
    finite_rewards,
    reward_range,
    no_reward_after_end,
    absorbing_end,
    success_terminates,
    step_result,
    action_is_effective,
    limit_of_steps,
    observation,
    determinism,
    different_starts,
    reward_follows_success,
    null_floor,
    constant_floor,
    repeat_last_floor,
    random_floor,
    reference,
    goal_reachable,
)


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
    runs = evidence.all_runs
    steps = sum(int(run.steps.sum()) for run in runs.values())
    numbers = {"steps": steps + (evidence.search.transitions if evidence.search else 0), **(numbers or {})}
    for policy, run in runs.items():
        for row in np.flatnonzero(run.broken[flaw])[:1]:
            step = int(run.broken[flaw][row])
            return verdict(name, reason, numbers, evidence.case(policy, run, row, step, found(run, row, step)))
    if evidence.search is not None and (case := evidence.search.broken[flaw]) is not None:
        row, actions = case
        names = [evidence.env.actions[action] for action in actions]
        data = {"seed": int(evidence.seeds[row]), "policy": "search", "actions": names, "found": reason}
        return verdict(name, reason, numbers, data)
    return verdict(name, "", numbers)
