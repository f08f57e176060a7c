"""Exhaustive search of the situations of levels, through the environment's own transitions.

Shapes: `N` levels, `F` states of a frontier.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, UInt32

from envs_jax.checks.play import BROKEN, fingerprint, in_batches, joined, noise_key, transition
from envs_jax.environment import TextEnvironment

LEVELS, SITUATIONS, SITUATIONS_OF_LEVEL = 256, 50_000, 5_000
"""Most levels; situations after which no more levels are searched; and after which the search of one is given up."""

TOGETHER = 16
"""Levels that are searched at a time."""

MOST_ACTIONS = 64
"""Environments with more actions are not searched."""

FEW_DRAWS, DRAWS = 2, 16
"""Keys with which an action is tried, until results differ, and where transitions are random; divisors of `BATCH`."""

BATCH = 2048
"""Transitions that are computed at a time."""


class Search(NamedTuple):
    """Result for N levels.

    Attributes:
        distance: fewest actions to a success; -1 if none was found.
        complete: all situations within the limit of actions were found, so that a level without a success has none.
        situations: number of different situations.
        transitions: number of transitions of all levels.
        random: equal actions in equal situations had different results.
        rewards: lowest and highest finite reward.
        broken: for each of `BROKEN` the first level and the action ids that lead to the step; None if there is none.
    """

    distance: Int32[np.ndarray, " N"]
    complete: Bool[np.ndarray, " N"]
    situations: Int32[np.ndarray, " N"]
    transitions: int
    random: bool
    rewards: tuple[float, float]
    broken: dict[str, tuple[int, tuple[int, ...]] | None]


@functools.partial(jax.jit, static_argnames="env")
def _advance(
    env: TextEnvironment, params: Any, span: tuple[Array, Array], states: Any, actions: Array, seeds: Array, draw: Array
) -> Any:
    def one(state: Any, action: Array, seed: Array, draw: Array) -> Any:
        after, reward, effective, broken = transition(env, params, span, noise_key(seed, draw), state, action)
        if _own_hash(env):
            other = jnp.any(env.state_hash(state, params) != env.state_hash(after, params))
            broken = {**broken, "other_effect": broken["other_effect"] | (other & ~effective)}
        return (
            after,
            reward,
            broken,
            _situation(env, params, after),
            env.success(after, params),
            env.is_done(after, params),
        )

    return jax.vmap(one)(states, actions, seeds, draw)


@functools.partial(jax.jit, static_argnames="env")
def _describe_starts(env: TextEnvironment, params: Any, states: Any) -> Any:
    return jax.vmap(lambda s: (_situation(env, params, s), env.success(s, params), env.is_done(s, params)))(states)


def _own_hash(env: TextEnvironment) -> bool:
    return type(env).state_hash is not TextEnvironment.state_hash


def _situation(env: TextEnvironment, params: Any, state: Any) -> UInt32[Array, " K"]:
    """Tells situations apart: by the environment's own `state_hash`, else by the text and the state but for its time.

    The text alone need not tell what follows.
    """
    hashed = env.state_hash(state, params)
    if _own_hash(env):
        return hashed
    timeless = state.replace(time=jnp.zeros_like(state.time))
    return jnp.concatenate([hashed, fingerprint(timeless, floats=True)])


def search(env: TextEnvironment, params: Any, span: tuple[Any, Any], seeds: np.ndarray, starts: Any) -> Search:
    """Searches start states [M, ...] of these seeds, breadth first, up to the limit of actions.

    Levels are searched in their order, some at a time, until there are `SITUATIONS`; N is how many were.
    """
    found: list[Search] = []
    draws = FEW_DRAWS
    for begin in range(0, len(seeds), TOGETHER):
        part = slice(begin, begin + TOGETHER)
        chosen = seeds[part], jax.tree.map(lambda leaf, part=part: leaf[part], starts)
        some = _search(env, params, span, *chosen, draws)
        if some.random and draws < DRAWS:
            draws = DRAWS
            some = _search(env, params, span, *chosen, draws)
        shifted = {name: case and (case[0] + begin, case[1]) for name, case in some.broken.items()}
        found.append(some._replace(broken=shifted))
        if sum(int(each.situations.sum()) for each in found) >= SITUATIONS:
            break
    lows, highs = zip(*(each.rewards for each in found))
    return Search(
        distance=np.concatenate([each.distance for each in found]),
        complete=np.concatenate([each.complete for each in found]),
        situations=np.concatenate([each.situations for each in found]),
        transitions=sum(each.transitions for each in found),
        random=any(each.random for each in found),
        rewards=(min(lows), max(highs)),
        broken={name: next((each.broken[name] for each in found if each.broken[name]), None) for name in BROKEN},
    )


def _search(
    env: TextEnvironment, params: Any, span: tuple[Any, Any], seeds: np.ndarray, starts: Any, draws: int
) -> Search:
    """Tries each action with as many keys; with `FEW_DRAWS`, ends where transitions turn out to be random."""
    count, actions = len(seeds), np.arange(env.num_actions, dtype=np.int32)
    hashes, solved, over = in_batches(functools.partial(_describe_starts, env, params), TOGETHER, starts)
    number: list[dict[bytes, int]] = [{row.tobytes(): 0} for row in hashes]
    parents: list[list[tuple[int, int]]] = [[(-1, -1)] for _ in range(count)]
    distance = np.where(solved, 0, -1).astype(np.int32)
    complete = np.ones(count, bool)
    broken: dict[str, tuple[int, tuple[int, ...]] | None] = dict.fromkeys(BROKEN)
    low, high, transitions, random = np.inf, -np.inf, 0, False
    live = np.flatnonzero(~over)
    states, of_level, of_node = jax.tree.map(lambda leaf: leaf[live], starts), live, np.zeros(len(live), np.int64)
    depth = 0
    while len(of_level):
        depth += 1
        # Actions, and draws of their results, of one state are neighbors.
        row, action, draw = (
            part.reshape(-1) for part in np.meshgrid(np.arange(len(of_level)), actions, np.arange(draws), indexing="ij")
        )
        grown: list[tuple[Any, np.ndarray, np.ndarray]] = []
        for begin in range(0, len(row), BATCH):
            rows, taken, drawn = (part[begin : begin + BATCH] for part in (row, action, draw))
            # Each situation has other keys: a rare event that one of them misses, others can meet.
            number_of_key = (of_node[rows] * DRAWS + drawn).astype(np.uint32)
            given = jax.tree.map(lambda leaf, i=rows: leaf[i], states), taken, seeds[of_level[rows]], number_of_key
            after, reward, flags, hashed, success, ended = in_batches(
                functools.partial(_advance, env, params, span), BATCH, *given
            )
            transitions += len(rows)
            finite = reward[np.isfinite(reward)]
            low, high = min(low, finite.min(initial=np.inf)), max(high, finite.max(initial=-np.inf))
            for name, flagged in flags.items():
                for index in np.flatnonzero(flagged)[: broken[name] is None]:
                    level, node = int(of_level[rows[index]]), int(of_node[rows[index]])
                    broken[name] = level, (*_path(parents[level], node), int(taken[index]))
            results = hashed.reshape(-1, draws, hashed.shape[1])
            random |= bool((results != results[:, :1]).any())
            fresh = []
            for index, key in enumerate(map(bytes, hashed)):
                level = int(of_level[rows[index]])
                if key in number[level] or not complete[level]:
                    continue
                if len(number[level]) >= SITUATIONS_OF_LEVEL:
                    complete[level] = False
                    continue
                number[level][key] = len(parents[level])
                parents[level].append((int(of_node[rows[index]]), int(taken[index])))
                if success[index] and distance[level] < 0:
                    distance[level] = depth
                if not ended[index]:
                    fresh.append((index, level, number[level][key]))
            if fresh:
                kept, level_of, node_of = (np.array(column) for column in zip(*fresh))
                grown.append((jax.tree.map(lambda leaf, i=kept: leaf[i], after), level_of, node_of))
        if not grown or (random and draws < DRAWS):
            break
        states = joined([part[0] for part in grown])
        of_level, of_node = (np.concatenate([part[i] for part in grown]) for i in (1, 2))
        kept = complete[of_level]
        states = jax.tree.map(lambda leaf, kept=kept: leaf[kept], states)
        of_level, of_node = of_level[kept], of_node[kept]
    situations = np.array([len(found) for found in number], np.int32)
    return Search(distance, complete, situations, transitions, random, (float(low), float(high)), broken)


def _path(parents: list[tuple[int, int]], node: int) -> tuple[int, ...]:
    actions: list[int] = []
    while node > 0:
        node, action = parents[node]
        actions.append(action)
    return tuple(reversed(actions))
