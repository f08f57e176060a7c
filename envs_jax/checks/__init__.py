"""Self-checks of compiled environments: that a score can be believed.

`check` plays an environment with policies that must not succeed, executes its reference solution, searches all
situations of small levels, and compares two passes; `check_registered` does so for a name of the registry. The contract
of a single step, its types and gymnax's interface are checked by `envs_jax.testing.check_env`.
"""

import time
from collections.abc import Callable
from typing import Any

from envs_jax import registry
from envs_jax.checks.evidence import gather
from envs_jax.checks.policy_rules import difficulty
from envs_jax.checks.report import Report, Result
from envs_jax.checks.rules import RULES
from envs_jax.environment import TextEnvironment
from envs_jax.errors import BadValue
from envs_jax.reference import FLOORS, Floors, Solver
from envs_jax.scripted_commands import ScriptedCommands
from envs_jax.token_environment import TokenEnvironment

__all__ = ["MOST_SEEDS", "Report", "Result", "check", "check_registered"]

MOST_SEEDS = 1_000_000
"""Most seeds of one check, whose results are held in memory."""


def check(
    env: TextEnvironment,
    params: Any,
    *,
    name: str | None = None,
    seeds: int = 1_000,
    limit: int | None = None,
    floors: Floors = FLOORS,
    solve: Solver | None = None,
    solved_levels: int | None = None,
    single_start: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> Report:
    """Checks a compiled environment on the levels of the keys `jax.random.key(0)` to `key(seeds - 1)`.

    Step t of an episode has the key `fold_in(fold_in(key(seed), 1), t)`, so that a counterexample can be played again.

    Args:
        env: the environment.
        params: its parameters.
        name: its name in the report; by default that of the environment.
        seeds: number of episodes of each policy, 1 to `MOST_SEEDS`.
        limit: most actions of an episode; by default `params.max_steps_in_episode`.
        floors: highest success of policies that do not solve the task.
        solve: reference solutions; without them, the check "reference" is skipped.
        solved_levels: number of levels that are solved; by default all.
        single_start: all episodes start alike, and are meant to.
        progress: called with a line of text before each part.

    Raises:
        ValueError: `seeds` or `limit` is out of range.
    """
    if not 1 <= seeds <= MOST_SEEDS:
        raise BadValue(f"seeds is {seeds}; expected 1 to {MOST_SEEDS}", "seeds", seeds)
    most = int(params.max_steps_in_episode)
    limit = most if limit is None else limit
    if not 1 <= limit <= most:
        raise BadValue(f"limit is {limit}; expected 1 to max_steps_in_episode, {most}", "limit", limit)
    begin = time.perf_counter()
    evidence = gather(
        env,
        params,
        seeds=seeds,
        limit=limit,
        floors=floors,
        solve=solve,
        solved_levels=solved_levels,
        single_start=single_start,
        progress=progress,
    )
    results = tuple(rule(evidence) for rule in RULES)
    return Report(name or env.name, "compiled", seeds, time.perf_counter() - begin, results, difficulty(evidence))


def check_registered(
    name: str, *, seeds: int | None = None, progress: Callable[[str], None] = lambda line: None
) -> Report:
    """Checks an environment of the registry with its default options; seeds default to its `checked_seeds`."""
    spec = registry.spec(name)
    env, params = registry.make(name)
    if spec.scripts:
        assert isinstance(env, TokenEnvironment)
        env = ScriptedCommands(env, spec.scripts)
    return check(
        env,
        params,
        name=name,
        seeds=seeds or spec.checked_seeds,
        limit=min(spec.max_actions, int(params.max_steps_in_episode)),
        floors=spec.floors,
        solve=spec.solve,
        solved_levels=spec.solved_levels,
        single_start=spec.single_start,
        progress=progress,
    )
