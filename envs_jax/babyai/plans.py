"""Plans for the stored items that AgentGym-RL trains and tests on, which `python -m envs_jax.babyai.plans` searches.

A plan reaches the goal within 20 actions both by AgentGym's rules and by the intended ones. It has the fewest actions
of all plans, except on the few items on which that search is given up: there, of all plans that carry nothing but keys
and what the mission is about. Where that search is given up too, it is a short one of `guided`, not proven shortest.
"""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int8, Int32, Key

from envs_jax.babyai import items, macros
from envs_jax.babyai.env import BabyAI
from envs_jax.babyai.guided import careful_actions, guided_plans
from envs_jax.babyai.policies import random_policy
from envs_jax.babyai.search import shortest_plans

FILE = Path(__file__).with_name("plans.json")

ROUNDS = 20
"""Most actions of a plan."""

MAX_NODES, MAX_CAREFUL_NODES = 4_000, 60_000
"""Situations of a level after which the search is given up, among all actions and among `careful_actions`."""

_STORED_NODES = 100_000, 250_000
"""The same for the stored plans."""

RANDOM = -3
"""In place of an action: one of those that are listed."""

Plan = tuple[int, ...]
"""Action ids."""


@functools.cache
def stored() -> dict[int, Plan | None]:
    """Returns the plans by item; None for an item without one."""
    plans = json.loads(FILE.read_text(encoding="utf-8"))
    return {int(item): None if plan is None else tuple(plan) for item, plan in plans.items()}


def find(
    env: BabyAI,
    params: Any,
    levels: Int8[np.ndarray, "N H W"],
    rounds: int = ROUNDS,
    *,
    max_nodes: tuple[int, int] = (MAX_NODES, MAX_CAREFUL_NODES),
) -> list[Plan | None]:
    """Searches a plan for each level, of at most `rounds` actions; `max_nodes` are the limits of both full searches.

    Levels that these give up get a guided plan, which may be longer than the shortest; None where there is none either.
    """
    plans: list[Plan | None] = [None] * len(levels)
    left = list(range(len(levels)))
    for most in sorted({MAX_NODES, max_nodes[0]}):  # many levels at a time only as long as they are small
        found = shortest_plans(env, params, levels[left], rounds, max_nodes=most) if left else []
        for number, plan in zip(left, found):
            plans[number] = plan.actions
        left = [number for number, plan in zip(left, found) if not plan.complete]
    for number in left:
        usable = careful_actions(levels[number], env.shape)[None]
        (plan,) = shortest_plans(env, params, levels[[number]], rounds, max_nodes=max_nodes[1], usable=usable)
        plans[number] = plan.actions
    left = [number for number in left if plans[number] is None]
    for number, plan in zip(left, guided_plans(env, params, levels[left], rounds) if left else []):
        plans[number] = plan.actions
    return plans


def scripts(plans: Sequence[Plan | None], rounds: int) -> Int32[np.ndarray, "N T"]:
    """Returns the first `rounds` actions of plans, filled up with `macros.UNKNOWN`."""
    actions = np.full((len(plans), rounds), macros.UNKNOWN, np.int32)
    for row, plan in zip(actions, plans):
        start = (plan or ())[:rounds]
        row[: len(start)] = start
    return actions


@functools.partial(jax.jit, static_argnames="env")
def replay(
    env: BabyAI, params: Any, levels: Int8[Array, "N H W"], keys: Key[Array, " N"], actions: Int32[Array, "N T"]
) -> tuple[Bool[Array, " N"], Bool[Array, " N"], Float[Array, " N"], Int32[Array, " N"]]:
    """Plays given actions on each level; returns what `policies.play` does.

    In place of `RANDOM` a listed action is sampled, so that one program serves random play too.
    """
    params = params.replace(max_steps_in_episode=jnp.int32(actions.shape[1]))

    def one(level: jax.Array, key: jax.Array, actions: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        _, first = env.reset_to_level(level, params)

        def step(carry: tuple[Any, jax.Array], given: tuple[jax.Array, ...]) -> tuple[tuple[Any, jax.Array], None]:
            (state, strict), (key, action) = carry, given
            action = jnp.where(action == RANDOM, random_policy(key, env.candidates(state)), action)
            _, state, _, _, info = env.step_env(key, state, action, params)
            return (state, strict | info["strict_success"]), None

        keys = jax.random.split(key, len(actions))
        (last, strict), _ = jax.lax.scan(step, (first, jnp.bool_(False)), (keys, actions))
        return env.success(last, params), strict, last.score, last.time

    return jax.vmap(one)(levels, keys, actions)


def main() -> None:
    """Searches the plans and writes the file; takes about ten minutes on two cores."""
    env = BabyAI(items.SHAPE, mode="upstream")
    chosen = [item for item in items.stored_indices() if items.number_of(item) in items.NUMBERS]
    rows = []
    for begin in range(0, len(chosen), 50):
        part = chosen[begin : begin + 50]
        plans = find(env, env.default_params, items.load(tuple(part)), max_nodes=_STORED_NODES)
        rows += [f'"{item}": {json.dumps(plan)}' for item, plan in zip(part, plans)]
        print(f"{begin + len(part)} of {len(chosen)}", flush=True)
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
