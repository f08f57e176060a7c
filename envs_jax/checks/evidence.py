"""What is measured of an environment before the rules judge it: start states, episodes of every policy, a search.

Shapes: `N` seeds.
"""

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int8, UInt32

from envs_jax.checks import reachable
from envs_jax.checks.play import AFTER_END, FOLLOW, RANDOM, REPEAT, Episodes, in_batches, play, starts
from envs_jax.environment import TextEnvironment
from envs_jax.reference import Floors, Reference, Solver, any_situation

BATCH, OTHER_BATCH = 2048, 1536
"""Episodes of a batch, and of a batch of the second pass, in which each has another place."""

EVERY_SEED_ACTIONS = 16
"""With at most so many actions, each is played constantly on every seed."""

FEWEST_SEEDS = 64
"""Seeds on which each constant action is played in an environment with more actions; then the best one is on all."""

CONSTANT = "constant "
"""Begins the name of a policy that repeats one action."""

ROUNDING = 1e-5
"""Largest relative difference of equal rewards, because batches of another size are rounded differently."""

_ORDER = 5
"""Seed of the order of the second pass."""


class Evidence(NamedTuple):
    """Everything that the rules need; a run covers the first of the seeds, as many as it has episodes.

    Attributes:
        limit: most actions of an episode, except of the reference, which may need more.
        span: lowest and highest reward; None if no range is declared.
        levels: number of different levels; None if the environment has no levels.
        different: number of different start states.
        single_start: the environment declares that there is only one.
        start_flaws: flaws of start states, as in `play.broken_state`.
        start_solved: start states that are solved.
        start_texts: piece ids of the first start states.
        runs: episodes by the name of their policy.
        differs: seeds that differ in the second pass, in the start ("start"), its hash or text later ("states") or in
            rewards ("rewards").
        reference: solutions of the first levels, and their episodes; both None if none are known.
        search: exhaustive search of the first levels; None with a reason in `no_search`.
    """

    env: TextEnvironment
    params: Any
    limit: int
    floors: Floors
    seeds: UInt32[np.ndarray, " N"]
    span: tuple[float, float] | None
    levels: int | None
    different: int
    single_start: bool
    start_flaws: dict[str, Bool[np.ndarray, " N"]]
    start_solved: Bool[np.ndarray, " N"]
    start_texts: np.ndarray
    runs: dict[str, Episodes]
    differs: dict[str, np.ndarray]
    reference: Reference | None
    reference_run: Episodes | None
    search: reachable.Search | None
    no_search: str

    @property
    def all_runs(self) -> dict[str, Episodes]:
        """Episodes by the name of their policy, with those of the reference."""
        return self.runs | ({} if self.reference_run is None else {"reference": self.reference_run})

    def case(self, policy: str, run: Episodes, row: int, step: int | None, found: Any) -> dict[str, Any]:
        """Returns a counterexample: an episode up to a step, or whole."""
        ids = run.actions[row, : run.steps[row] if step is None else step].tolist()
        names = [self.env.actions[action] if 0 <= action < len(self.env.actions) else action for action in ids]
        return {"seed": int(self.seeds[row]), "policy": policy, "actions": names, "found": found}

    def start_case(self, row: int, found: Any) -> dict[str, Any]:
        """Returns a counterexample without actions."""
        return {"seed": int(self.seeds[row]), "policy": None, "actions": [], "found": found}


def gather(
    env: TextEnvironment,
    params: Any,
    *,
    seeds: int,
    limit: int,
    floors: Floors,
    solve: Solver | None,
    solved_levels: int | None,
    single_start: bool,
    progress: Callable[[str], None],
) -> Evidence:
    """Measures an environment on the seeds 0 to `seeds` - 1; see `envs_jax.checks.check`."""
    numbers = np.arange(seeds, dtype=np.uint32)
    size, other_size = min(seeds, BATCH), min(max(1, seeds * 3 // 4), OTHER_BATCH)
    span: tuple[float, float] | None = None
    with contextlib.suppress(NotImplementedError):
        low, high = env.reward_range(params)
        span = float(low), float(high)
    ends = _widened(*span) if span else (jnp.float32(-jnp.inf), jnp.float32(jnp.inf))

    progress(f"{seeds} start states")
    begin = functools.partial(starts, env, params)
    levels, states, flaws, solved, texts, digests = in_batches(
        functools.partial(begin, from_level=env.has_levels), size, numbers
    )
    reference = None
    distinct = len(_distinct(levels)[0]) if env.has_levels else None
    different = distinct or _different(states)
    order = np.random.default_rng(_ORDER).permutation(seeds)
    with ThreadPoolExecutor(1) as pool:
        # Python's solvers use one core, and the compiled start states another one.
        progress(f"{seeds} start states again, in another order and batches of {other_size}")
        second = pool.submit(in_batches, functools.partial(begin, from_level=False), other_size, numbers[order])
        if solve is not None:
            count = min(seeds, solved_levels or seeds)
            progress(f"solutions of {count} levels")
            first = jax.tree.map(lambda leaf: leaf[:count], states)
            reference = _solve(env, params, solve, levels[:count], first, limit)
        _, again, *_, other_digests = second.result()
    longest = min(int(params.max_steps_in_episode), max(limit, int(reference.lengths.max()) if reference else 0))
    shape = reference.actions.shape[1:] if reference else (1, 1)
    situation = reference.situation if reference else any_situation
    most = longest + AFTER_END

    def episodes(policy: int, rows: np.ndarray, states: Any, table: np.ndarray, batch: int, steps: int) -> Episodes:
        def some(rows: np.ndarray, states: Any, table: np.ndarray) -> Any:
            return play(
                env,
                situation,
                most,
                params,
                ends,
                jnp.int32(policy),
                jnp.int32(steps),
                rows,
                states,
                jnp.asarray(table),
            )

        found = Episodes(**in_batches(some, batch, rows, states, table))
        return found._replace(solved_at=np.where(solved[rows], 0, found.solved_at))

    nothing = np.broadcast_to(np.int16(-1), (seeds, *shape))
    runs: dict[str, Episodes] = {}
    for name, policy in (("random", RANDOM), ("repeat_last", REPEAT)):
        progress(f"{name} policy, {seeds} episodes")
        runs[name] = episodes(policy, numbers, states, nothing, size, limit)
    each = seeds if env.num_actions <= EVERY_SEED_ACTIONS else min(seeds, FEWEST_SEEDS)
    progress(f"{env.num_actions} constant actions, {each} episodes of each")
    runs |= _constant(env, episodes, numbers[:each], states, shape, size, limit)
    if each < seeds:
        worst = most_successful(runs)
        progress(f"{worst}, {seeds} episodes")
        action = env.actions.index(worst.removeprefix(CONSTANT))
        runs[worst] = episodes(FOLLOW, numbers, states, np.full_like(nothing, action), size, limit)

    progress(f"{seeds} random episodes again, in another order and batches of {other_size}")
    replayed = episodes(RANDOM, numbers[order], again, nothing, other_size, limit)
    moved = (other_digests != digests[order]).any(axis=1) | _floats_differ(states, again, order)
    differs = {"start": order[moved]} | _differences(runs["random"], replayed, order)

    reference_run = None
    if reference is not None:
        count = len(reference.lengths)
        progress(f"reference, {count} episodes")
        first = jax.tree.map(lambda leaf: leaf[:count], states)
        steps = limit if reference.success is not None else longest
        reference_run = episodes(FOLLOW, numbers[:count], first, reference.actions, size, steps)
    found, why = None, ""
    if env.num_actions <= reachable.MOST_ACTIONS:
        count = min(seeds, reachable.LEVELS)
        progress(f"all situations of {count} levels")
        found = reachable.search(env, params, ends, numbers[:count], jax.tree.map(lambda leaf: leaf[:count], states))
        found, why = _not_refuted(found, [*runs.values(), *([reference_run] if reference_run else [])])
    else:
        why = f"{env.num_actions} actions are more than {reachable.MOST_ACTIONS}"
    return Evidence(
        env, params, limit, floors, numbers, span, distinct, different, single_start, flaws, solved, texts[:BATCH],
        runs, differs, reference, reference_run, found, why,
    )  # fmt: skip


def most_successful(runs: Mapping[str, Episodes]) -> str:
    """The name of the constant policy that succeeds most often on the seeds that all of them play, the first ones."""
    constants = {name: run.solved for name, run in runs.items() if name.startswith(CONSTANT)}
    each = min(map(len, constants.values()))
    return max(constants, key=lambda name: constants[name][:each].mean())


def _widened(low: float, high: float) -> tuple[jax.Array, jax.Array]:
    """Returns the range that sums of rounded numbers keep."""
    below, above = (ROUNDING * max(1.0, abs(end)) if np.isfinite(end) else 0.0 for end in (low, high))
    return jnp.float32(low - below), jnp.float32(high + above)


def _distinct(levels: Int8[np.ndarray, "N H W"]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of the first of equal levels, and for each level which of these it equals."""
    rows = np.ascontiguousarray(levels.reshape(len(levels), -1))
    _, first, inverse = np.unique(rows.view(f"V{rows.shape[1]}")[:, 0], return_index=True, return_inverse=True)
    return first, inverse


def _different(states: Any) -> int:
    """Returns the number of different states, floats and keys included."""
    rows = []
    for leaf in jax.tree.leaves(states):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        rows.append(np.ascontiguousarray(leaf).reshape(len(leaf), -1).view(np.uint8))
    return len(set(map(bytes, np.concatenate(rows, axis=1))))


def _not_refuted(search: reachable.Search, runs: Sequence[Episodes]) -> tuple[reachable.Search, str]:
    """Returns the search without its proofs that there is no solution, and why, if a policy has found one."""
    solved = np.zeros(len(search.distance), bool)
    for run in runs:
        some = run.solved[: len(solved)]
        solved[: len(some)] |= some
    refuted = int((search.complete & (search.distance < 0) & solved).sum())
    if not refuted:
        return search, ""
    why = f"it misses the solutions of {refuted} levels that a policy solves, because "
    why += "they are rare" if search.random else "equal state_hash are followed by different situations"
    return search._replace(complete=np.zeros_like(search.complete)), why


def _solve(env: TextEnvironment, params: Any, solve: Solver, levels: np.ndarray, states: Any, limit: int) -> Reference:
    """Solves each different level once."""
    if not env.has_levels:
        return solve(env, params, levels, states, limit)
    first, inverse = _distinct(levels)
    actions, lengths, complete, situation, success = solve(
        env, params, levels[first], jax.tree.map(lambda leaf: leaf[first], states), limit
    )
    exact = None if success is None else success[inverse]
    return Reference(actions[inverse], lengths[inverse], complete[inverse], situation, exact)


def _constant(
    env: TextEnvironment,
    episodes: Callable[..., Episodes],
    seeds: np.ndarray,
    states: Any,
    shape: tuple[int, ...],
    size: int,
    limit: int,
) -> dict[str, Episodes]:
    """Plays each action constantly on these seeds, those of few episodes together."""
    count = len(seeds)
    together = max(1, size // count)
    found: dict[str, Episodes] = {}
    for begin in range(0, env.num_actions, together):
        chosen = np.arange(begin, min(begin + together, env.num_actions), dtype=np.int16)
        rows = np.tile(np.arange(count), len(chosen))
        table = np.broadcast_to(np.repeat(chosen, count)[:, None, None], (len(rows), *shape))
        some = jax.tree.map(lambda leaf, rows=rows: leaf[rows], states)
        played = episodes(FOLLOW, seeds[rows], some, table, size, limit)
        for place, action in enumerate(chosen):
            part = slice(place * count, (place + 1) * count)
            found[f"{CONSTANT}{env.actions[action]}"] = jax.tree.map(lambda leaf, part=part: leaf[part], played)
    return found


def _floats_differ(states: Any, again: Any, order: np.ndarray) -> Bool[np.ndarray, " N"]:
    """Returns which rows of `again`, which has the order `order`, have other floats."""
    differ = np.zeros(len(order), bool)
    for before, now in zip(jax.tree.leaves(states), jax.tree.leaves(again)):
        if jnp.issubdtype(before.dtype, jnp.floating):
            same = np.isclose(before[order], now, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)
            differ |= ~same.reshape(len(order), -1).all(axis=1)
    return differ


def _differences(first: Episodes, again: Episodes, order: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the seeds whose episodes differ; `again` has the order `order`."""
    states = (first.digest[order] != again.digest).any(axis=1) | (first.steps[order] != again.steps)
    steps = np.arange(first.rewards.shape[1]) < np.minimum(first.steps[order], again.steps)[:, None]
    before, now = first.rewards[order], again.rewards
    same = np.isclose(before, now, rtol=ROUNDING, atol=ROUNDING, equal_nan=True)
    return {"states": order[states], "rewards": order[(steps & ~same).any(axis=1)]}
