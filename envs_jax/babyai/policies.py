"""Play without a model: whole episodes of simple policies, compiled.

Shapes: `N` levels, `A` listed actions.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8, Int32, Key

from envs_jax.babyai.bits import WORD, nth_number, pack
from envs_jax.babyai.env import BabyAI

Policy = Callable[[Key[Array, ""], Int32[Array, " A"]], Int[Array, ""]]
"""(key, listed actions, padded with negative ids) -> an action."""


def random_policy(key: Key[Array, ""], listed: Int32[Array, " A"]) -> Int[Array, ""]:
    """Takes one of the listed actions, each with the same probability."""
    is_listed = listed >= 0
    rank = jax.random.randint(key, (), 0, jnp.sum(is_listed))
    return listed[nth_number(pack(is_listed, -(-len(listed) // WORD)), rank)]


@functools.partial(jax.jit, static_argnames=("env", "policy", "rounds"))
def play(
    env: BabyAI, params: Any, levels: Int8[Array, "N H W"], keys: Key[Array, " N"], policy: Policy, rounds: int
) -> tuple[Bool[Array, " N"], Bool[Array, " N"], Float[Array, " N"], Int32[Array, " N"]]:
    """Plays an episode of at most `rounds` actions on each level.

    Returns success, strict success (see `BabyAI`), the score (the sum of the rewards), and the number of actions.
    """
    params = params.replace(max_steps_in_episode=jnp.int32(rounds))

    def one(level: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        _, first = env.reset_to_level(level, params)

        def step(carry: tuple[Any, jax.Array], key: jax.Array) -> tuple[tuple[Any, jax.Array], None]:
            state, strict = carry
            action = policy(key, env.candidates(state))
            _, state, _, _, info = env.step_env(key, state, action, params)
            return (state, strict | info["strict_success"]), None

        (last, strict), _ = jax.lax.scan(step, (first, jnp.bool_(False)), jax.random.split(key, rounds))
        return env.success(last, params), strict, last.score, last.time

    return jax.vmap(one)(levels, keys)


@functools.partial(jax.jit, static_argnames=("env", "most"))
def random_actions(
    env: BabyAI,
    params: Any,
    levels: Int8[Array, "N H W"],
    keys: Key[Array, " N"],
    counts: Int32[Array, " N"],
    most: int,
) -> Int32[Array, "N most"]:
    """Returns the first `counts` actions of `random_policy` on each level, at most `most`, padded with -1.

    They end with the episode, so that there may be fewer.
    """
    params = params.replace(max_steps_in_episode=jnp.int32(most + 1))

    def one(level: jax.Array, key: jax.Array, count: jax.Array) -> jax.Array:
        _, first = env.reset_to_level(level, params)

        def step(state: Any, numbered: tuple[jax.Array, jax.Array]) -> tuple[Any, jax.Array]:
            number, key = numbered
            action = random_policy(key, env.candidates(state))
            action = jnp.where((number < count) & ~env.is_done(state, params), action, -1)
            _, after, *_ = env.step_env(key, state, action, params)
            return jax.tree.map(lambda new, old: jnp.where(action >= 0, new, old), after, state), action

        return jax.lax.scan(step, first, (jnp.arange(most), jax.random.split(key, most)))[1]

    return jax.vmap(one)(levels, keys, counts)
