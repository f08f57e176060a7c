"""Start states and whole episodes of simple policies, compiled, with what the checks have to know of every step.

Shapes: `B` episodes of a batch, `N` all episodes, `T` recorded actions, `S` situations of a reference.
"""

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float32, Int, Int16, Int32, Key, UInt32

from envs_jax.environment import NO_PIECE, TextEnvironment
from envs_jax.reference import Situation

RANDOM, REPEAT, FOLLOW = range(3)
"""Policies: uniform random actions; the first of them again and again; the actions of a table."""

AFTER_END = 2
"""Steps that are taken after the end of all episodes."""

BROKEN = (
    "not_finite",
    "out_of_range",
    "after_end",
    "changed",
    "not_terminated",
    "bad_text",
    "many_pieces",
    "bad_array",
    "other_end",
    "other_success",
    "other_effect",
    "not_counted",
)
"""What a step can break: the reward is not finite, or out of the declared range; a finished state pays, or changes; a
success does not terminate; piece ids without a piece, or no piece at all; more of a piece than `piece_limits`. What it
returns: an observation outside of the observation space; another `terminated` or, before the end, `info["success"]`
than the state; an `info["action_is_effective"]` that cannot be true. The action is not counted in `time`, or the
episode goes on at the limit of steps."""

AT_A_TIME = 2
"""Batches that are computed at a time."""

_NOISE, _CHOICE = 1, 2
"""Folded into the key of an episode."""


class Episodes(NamedTuple):
    """What happened in N episodes; NumPy arrays.

    Attributes:
        actions: action ids, also of the steps after the end; -1 after the last one.
        rewards: rewards by step.
        steps: actions until the end.
        solved_at: actions until the first success; -1 if there was none.
        broken: for each of `BROKEN` the number of the first step that broke it, from 1; 0 if none did.
        digest: a hash of all states without their floats, texts and flags, in their order.
    """

    actions: Int16[np.ndarray, "N T"]
    rewards: Float32[np.ndarray, "N T"]
    steps: Int32[np.ndarray, " N"]
    solved_at: Int32[np.ndarray, " N"]
    broken: dict[str, Int32[np.ndarray, " N"]]
    digest: UInt32[np.ndarray, "N 2"]

    @property
    def solved(self) -> np.ndarray:
        """Whether there was a success, bool[N]."""
        return self.solved_at >= 0

    @property
    def returns(self) -> np.ndarray:
        """Sums of the rewards until the end, f64[N]."""
        before_end = np.arange(self.rewards.shape[1]) < self.steps[:, None]
        return np.where(before_end, self.rewards, 0).sum(axis=1, dtype=np.float64)


def key_of(seed: Int[Array, ""]) -> Key[Array, ""]:
    """The key of an episode, which decides its level."""
    return jax.random.key(seed)


def noise_key(seed: Int[Array, ""], step: Int[Array, ""]) -> Key[Array, ""]:
    """The key of a step, counted from 0, of an episode."""
    return jax.random.fold_in(jax.random.fold_in(key_of(seed), _NOISE), step)


def fingerprint(tree: Any, *, floats: bool) -> UInt32[Array, "2"]:
    """Hashes all leaves of a pytree, bit by bit; without floats, those are left out."""
    total = jnp.zeros(2, jnp.uint32)
    for number, leaf in enumerate(jax.tree.leaves(tree)):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            if not floats:
                continue
            leaf = jax.lax.bitcast_convert_type(leaf.astype(jnp.float32), jnp.uint32)
        words = leaf.reshape(-1).astype(jnp.uint32)
        places = (jnp.arange(words.size, dtype=jnp.uint32) * 2 + 1) * jnp.uint32(0x9E3779B1 + 2 * number)
        words = (words ^ places) * jnp.uint32(0x85EBCA6B)
        words = (words ^ (words >> 15)) * (places | 1)
        total += jnp.stack([jnp.sum(words ^ (words >> 13)), jnp.sum(words * jnp.uint32(0xC2B2AE35) ^ (words >> 16))])
    return total


def transition(
    env: TextEnvironment,
    params: Any,
    span: tuple[Array, Array],
    key: Key[Array, ""],
    state: Any,
    action: Int[Array, ""],
) -> tuple[Any, Float32[Array, ""], Bool[Array, ""], dict[str, Bool[Array, ""]]]:
    """Takes one step; returns the state, the reward, `info["action_is_effective"]`, and what the step broke.

    `span` is the range of rewards.
    """
    done = env.is_done(state, params)
    array, after, reward, terminated, info = env.step_env(key, state, action, params)
    finite = jnp.isfinite(reward)
    before, now = (fingerprint((s, env.describe(s, params)), floats=True) for s in (state, after))
    effective, solved = info["action_is_effective"], env.success(after, params)
    solves = solved & ~env.success(state, params)
    endless = (after.time >= params.max_steps_in_episode) & ~env.is_done(after, params)
    broken = {
        "not_finite": ~finite,
        "out_of_range": finite & ~done & ((reward < span[0]) | (reward > span[1])),
        "after_end": done & finite & (reward != 0),
        "changed": done & jnp.any(before != now),
        "bad_array": ~_is_observation(env, params, array),
        "other_end": terminated != env.is_terminated(after, params),
        "other_success": ~done & (info["success"] != solved),
        "other_effect": jnp.where(done, effective, solves & ~effective),
        "not_counted": ~done & ((after.time != state.time + 1) | endless),
        **broken_state(env, params, after),
    }
    return after, reward, effective, broken


def _is_observation(env: TextEnvironment, params: Any, array: Any) -> Bool[Array, ""]:
    """Whether an array is in the observation space; an environment without one promises nothing."""
    try:
        return jnp.asarray(env.observation_space(params).contains(array))
    except NotImplementedError:
        return jnp.bool_(True)


def broken_state(env: TextEnvironment, params: Any, state: Any) -> dict[str, Bool[Array, ""]]:
    """Returns what is wrong with a state."""
    ids = env.describe(state, params)
    outside = jnp.any((ids < NO_PIECE) | (ids >= len(env.pieces)))
    limits = jnp.asarray(env.piece_limits or [ids.size] * len(env.pieces))
    counts = jnp.zeros(len(env.pieces), jnp.int32).at[jnp.where(ids < 0, len(env.pieces), ids)].add(1, mode="drop")
    return {
        "many_pieces": jnp.any(counts > limits),
        "not_terminated": env.success(state, params) & ~env.is_terminated(state, params),
        "bad_text": outside | jnp.all(ids == NO_PIECE),
    }


def in_batches(function: Callable[..., Any], size: int, *rows: Any) -> Any:
    """Calls a function on batches of one size of rows, pytrees of NumPy arrays [N, ...]; returns NumPy arrays.

    Two batches are computed at a time, because most operations of XLA use one core of a CPU.
    """
    count = len(jax.tree.leaves(rows)[0])

    def one(begin: int) -> Any:
        chosen = np.minimum(np.arange(begin, begin + size), count - 1)
        part = jax.device_get(function(*jax.tree.map(lambda leaf: leaf[chosen], rows)))
        return jax.tree.map(lambda leaf: leaf[: count - begin], part)

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        # The first batch compiles the program, which the others use.
        return joined([one(0), *pool.map(one, range(size, count, size))])


def joined(parts: Sequence[Any]) -> Any:
    """Concatenates pytrees of NumPy arrays, or of keys, which NumPy does not know."""

    def one(*leaves: Any) -> Any:
        keys = jnp.issubdtype(leaves[0].dtype, jax.dtypes.prng_key)
        return (jnp if keys else np).concatenate(leaves)

    return jax.tree.map(one, *parts)


@functools.partial(jax.jit, static_argnames=("env", "from_level"))
def starts(env: TextEnvironment, params: Any, seeds: UInt32[Array, " B"], *, from_level: bool) -> Any:
    """Returns levels i8[B, H, W], start states, flaws, whether they are solved, texts i16[B, P], and digests u32[B, 2].

    With `from_level`, levels are sampled first and states start on them; otherwise `reset_env` does both, and the
    levels are empty. The results are equal in an environment that keeps the contract.
    """

    def one(seed: jax.Array) -> Any:
        level = jnp.zeros((0, 0), jnp.int8)
        if from_level:
            level = env.sample_level(key_of(seed), params)
            state = env.reset_to_level(level, params)[1]
        else:
            state = env.reset_env(key_of(seed), params)[1]
        text = env.describe(state, params)
        flaws = broken_state(env, params, state)
        digest = fingerprint((state, text), floats=False)
        return level, state, flaws, env.success(state, params), text.astype(jnp.int16), digest

    return jax.vmap(one)(seeds)


def candidates(env: TextEnvironment, state: Any) -> Int32[Array, " A"]:
    """Ids that random play chooses from, those of `env.candidates(state)` that are not negative, or all."""
    listed = getattr(env, "candidates", None)
    return listed(state) if listed else jnp.arange(env.num_actions, dtype=jnp.int32)


@functools.partial(jax.jit, static_argnames=("env", "situation", "most"))
def play(
    env: TextEnvironment,
    situation: Situation,
    most: int,
    params: Any,
    span: tuple[Array, Array],
    policy: Int32[Array, ""],
    limit: Int32[Array, ""],
    seeds: UInt32[Array, " B"],
    states: Any,
    table: Int16[Array, "B T S"],
) -> Any:
    """Plays episodes of at most `limit` actions, and `AFTER_END` steps more; returns the fields of `Episodes`.

    `most` is a constant bound of the steps. The policy "FOLLOW" takes the actions of the table, and random ones where
    it has none.
    """
    params = params.replace(max_steps_in_episode=limit)
    count = len(seeds)

    def choose(t: jax.Array, states: Any, last: jax.Array) -> jax.Array:
        def uniform() -> jax.Array:
            def one(seed: jax.Array, state: Any) -> jax.Array:
                listed = candidates(env, state)
                seen = jnp.cumsum(listed >= 0)
                key = jax.random.fold_in(jax.random.fold_in(key_of(seed), _CHOICE), t)
                return listed[jnp.argmax(seen == 1 + jax.random.randint(key, (), 0, seen[-1]))]

            return jax.vmap(one)(seeds, states)

        def follow() -> jax.Array:
            place = jax.vmap(situation)(states)
            known = table[jnp.arange(count), jnp.minimum(t, table.shape[1] - 1), place].astype(jnp.int32)
            return jnp.where(known >= 0, known, uniform())

        return jax.lax.switch(policy, (uniform, lambda: jnp.where(t == 0, uniform(), last), follow))

    def step(carry: Any) -> Any:
        t, idle, states, last, found = carry
        done = jax.vmap(lambda state: env.is_done(state, params))(states)
        action = choose(t, states, last)
        after, reward, _, broken = jax.vmap(
            lambda seed, state, action: transition(env, params, span, noise_key(seed, t), state, action)
        )(seeds, states, action)
        solved = jax.vmap(lambda state: env.success(state, params))(after)
        seen = jax.vmap(lambda state: fingerprint((state, env.describe(state, params)), floats=False))(after)
        found = {
            "actions": found["actions"].at[:, t].set(action.astype(jnp.int16)),
            "rewards": found["rewards"].at[:, t].set(reward),
            "steps": found["steps"] + ~done,
            "solved_at": jnp.where((found["solved_at"] < 0) & solved & ~done, t + 1, found["solved_at"]),
            "broken": {
                name: jnp.where((first == 0) & broken[name], t + 1, first) for name, first in found["broken"].items()
            },
            "digest": jnp.where(
                done[:, None], found["digest"], found["digest"] * jnp.uint32(0x01000193) ^ seen ^ solved[:, None]
            ),
        }
        return t + 1, jnp.where(jnp.all(done), idle + 1, 0), after, action, found

    none = jnp.zeros(count, jnp.int32)
    found = {
        "actions": jnp.full((count, most), -1, jnp.int16),
        "rewards": jnp.zeros((count, most), jnp.float32),
        "steps": none,
        "solved_at": none - 1,
        "broken": dict.fromkeys(BROKEN, none),
        "digest": jnp.zeros((count, 2), jnp.uint32),
    }
    first = jnp.int32(0), jnp.int32(0), states, none, found
    return jax.lax.while_loop(
        lambda carry: (carry[0] < jnp.minimum(limit + AFTER_END, most)) & (carry[1] < AFTER_END), step, first
    )[-1]
