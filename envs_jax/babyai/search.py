"""Plans with the fewest actions, by breadth-first search over the compiled environment.

The search knows the whole level, an agent does not. Transitions run in batches; the host keeps the nodes. They run on a
CPU of the host, even if JAX has an accelerator: it needs far longer for so many small steps.

Shapes: `N` levels, `F` actions before the plan, `K` nodes.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Int8, Int32

from envs_jax.babyai.env import BabyAI

BATCH = 2048
"""Transitions that are computed at a time."""


Keep = Callable[[Any, Int32[np.ndarray, " K"]], Bool[np.ndarray, " K"]]
"""(states, level of each) -> which situations of one depth the search goes on from."""


class Plan(NamedTuple):
    """Result for a level: action ids, or None; `complete` is false if situations were left out."""

    actions: tuple[int, ...] | None
    complete: bool
    nodes: int


class _Nodes(NamedTuple):
    """Nodes of one depth: the states [K, ...], and for each its level, its own number and its parent's."""

    states: Any
    level: np.ndarray
    number: np.ndarray


def shortest_plans(
    env: BabyAI,
    params: Any,
    levels: Int8[np.ndarray, "N H W"],
    rounds: int,
    *,
    max_nodes: int = 50_000,
    usable: Bool[np.ndarray, "N A"] | None = None,
    first: Int32[np.ndarray, "N F"] | None = None,
    keep: Keep | None = None,
) -> list[Plan]:
    """Returns a plan with the fewest actions for each level, within `rounds` actions.

    Situations with equal `state_hash` count as one. A level is given up after `max_nodes` situations. With `usable`, a
    flag for each action id, plans are made of these actions alone. With `first`, these actions, padded with -1, are
    taken before the plan, which does not contain them; there is no plan if the episode is over after them. With `keep`,
    the plan has the fewest actions of those that pass the kept situations alone.
    """
    with on_cpu():
        return _shortest_plans(env, params, levels, rounds, max_nodes, usable, first, keep)


def on_cpu() -> AbstractContextManager[Any]:
    """Makes a CPU of this host the default device, unless JAX_PLATFORMS leaves the CPU out."""
    try:
        return jax.default_device(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return nullcontext()


def _shortest_plans(
    env: BabyAI,
    params: Any,
    levels: Int8[np.ndarray, "N H W"],
    rounds: int,
    max_nodes: int,
    usable: Bool[np.ndarray, "N A"] | None,
    first: Int32[np.ndarray, "N F"] | None,
    keep: Keep | None,
) -> list[Plan]:
    count = len(levels)
    first = np.zeros((count, 0), np.int32) if first is None else first
    params = params.replace(max_steps_in_episode=jnp.int32(rounds + first.shape[1] + 1))
    *_, (start, first_hashes, _, over) = follow(env, params, levels, first)
    visited = [{_key(found)} for found in first_hashes]
    parents: list[list[tuple[int, int]]] = [[(-1, -1)] for _ in range(count)]
    plans: list[tuple[int, ...] | None] = [None] * count
    open_levels = ~over
    complete = np.ones(count, bool)
    frontier = _Nodes(start, np.arange(count), np.zeros(count, np.int64))
    for _ in range(rounds):
        if not len(frontier.level):
            break
        listed = in_batches(functools.partial(listed_actions, env), params, frontier.states)
        allowed = True if usable is None else usable[frontier.level[:, None], listed]
        row, column = np.nonzero((listed >= 0) & allowed)
        actions = listed[row, column]
        grown: list[tuple[Any, np.ndarray, np.ndarray]] = []
        for begin in range(0, len(row), BATCH):
            rows, chosen = row[begin : begin + BATCH], actions[begin : begin + BATCH]
            kept = open_levels[frontier.level[rows]]
            rows, chosen = rows[kept], chosen[kept]
            if not len(rows):
                continue
            states = jax.tree.map(lambda leaf, rows=rows: leaf[rows], frontier.states)
            after, hashes, solved, ended = in_batches(functools.partial(advance, env), params, states, chosen)
            fresh = []
            for index, (node, action) in enumerate(zip(rows.tolist(), chosen.tolist())):
                level, parent = int(frontier.level[node]), int(frontier.number[node])
                if not open_levels[level]:
                    continue
                if solved[index]:
                    plans[level] = (*_back(parents[level], parent), action)
                    open_levels[level] = False
                    continue
                key = _key(hashes[index])
                if ended[index] or key in visited[level]:
                    continue
                if len(visited[level]) >= max_nodes:
                    open_levels[level] = complete[level] = False
                    continue
                visited[level].add(key)
                parents[level].append((parent, action))
                fresh.append((index, level, len(parents[level]) - 1))
            if fresh:
                kept_rows, of_level, of_number = (np.array(column) for column in zip(*fresh))
                grown.append((jax.tree.map(lambda leaf, i=kept_rows: leaf[i], after), of_level, of_number))
        if not grown:
            break
        states = jax.tree.map(lambda *leaves: np.concatenate(leaves), *[part[0] for part in grown])
        of_level, of_number = (np.concatenate([part[i] for part in grown]) for i in (1, 2))
        kept = open_levels[of_level]
        if keep is not None:
            near = keep(jax.tree.map(lambda leaf, kept=kept: leaf[kept], states), of_level[kept])
            complete[of_level[kept][~near]] = False
            kept[kept] = near
        frontier = _Nodes(jax.tree.map(lambda leaf, kept=kept: leaf[kept], states), of_level[kept], of_number[kept])
    return [Plan(plan, bool(done), len(seen)) for plan, done, seen in zip(plans, complete, visited)]


def _back(parents: list[tuple[int, int]], node: int) -> tuple[int, ...]:
    actions = []
    while node > 0:
        node, action = parents[node]
        actions.append(action)
    return tuple(reversed(actions))


def _key(hashes: np.ndarray) -> int:
    return int(hashes[0]) << 32 | int(hashes[1])


def in_batches(function: Any, params: Any, *rows: Any) -> Any:
    """Calls a compiled function of (params, *rows) on rows, padded to batches of one size; returns NumPy arrays."""
    count = len(jax.tree.leaves(rows[0])[0])
    results = []
    for begin in range(0, count, BATCH):
        part = jax.tree.map(lambda leaf, begin=begin: np.asarray(leaf[begin : begin + BATCH]), rows)
        size = len(jax.tree.leaves(part)[0])
        part = jax.tree.map(
            lambda leaf, size=size: np.pad(leaf, [(0, BATCH - size)] + [(0, 0)] * (leaf.ndim - 1), "edge"), part
        )
        found = jax.device_get(function(params, *part))
        results.append(jax.tree.map(lambda leaf, size=size: leaf[:size], found))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)


def follow(
    env: BabyAI, params: Any, levels: Int8[np.ndarray, "N H W"], first: Int32[np.ndarray, "N F"]
) -> Iterator[Any]:
    """Yields what `advance` returns at the beginning of the levels, and after each action that some of them take."""
    found = in_batches(functools.partial(_begin, env), params, levels)
    yield found
    for actions in first.T[np.any(first >= 0, axis=0)]:
        found = in_batches(functools.partial(advance, env), params, found[0], actions)
        yield found


@functools.partial(jax.jit, static_argnums=0)
def _begin(env: BabyAI, params: Any, levels: jax.Array) -> Any:
    return jax.vmap(lambda level: _found(env, params, env.reset_to_level(level, params)[1]))(levels)


def _found(env: BabyAI, params: Any, state: Any) -> Any:
    return state, env.state_hash(state, params), env.success(state, params), env.is_done(state, params)


@functools.partial(jax.jit, static_argnums=0)
def listed_actions(env: BabyAI, params: Any, states: Any) -> jax.Array:
    """Returns the listed actions of each state, `i32[K, A]`, with negative ids between them."""
    return jax.vmap(env.candidates)(states)


@functools.partial(jax.jit, static_argnums=0)
def advance(env: BabyAI, params: Any, states: Any, actions: jax.Array) -> Any:
    """Returns states after an action, or as they are where it is negative; their hashes, successes, and ends.

    This is the only program of searches and explorations that holds a step, which takes seconds to compile.
    """

    def one(state: Any, action: jax.Array) -> Any:
        _, after, *_ = env.step_env(jax.random.key(0), state, action, params)
        return _found(env, params, jax.tree.map(lambda new, old: jnp.where(action >= 0, new, old), after, state))

    return jax.vmap(one)(states, actions)
