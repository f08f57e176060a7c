"""A lock with a code of four numbers, and what can be wrong with it: a parameter, so that all faults share programs."""

import enum

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnax.environments import spaces
from jaxtyping import Array, Bool, Float32, Int32

from envs_jax import EnvParams, EnvState, TextEnvironment
from envs_jax.batching import on_rows
from envs_jax.environment import hash_integers
from envs_jax.reference import Reference

DIGITS, LIMIT, CODES = 4, 8, 14
SPECIAL = 5

CHECKS = {
    "reward_range": "PAYS_TOO_MUCH",
    "finite_rewards": "PAYS_NAN",
    "determinism": "RESET_KNOWS_THE_PLACE FLOAT_KNOWS_THE_PLACE REWARD_KNOWS_THE_PLACE",
    "no_reward_after_end": "PAYS_AFTER_END",
    "absorbing_end": "CHANGES_AFTER_END",
    "null_floor": "STARTS_SOLVED",
    "constant_floor": "SAME_ACTION_WINS",
    "random_floor": "MIXED_ACTIONS_WIN",
    "observation": "SAYS_UNKNOWN_PIECE SAYS_TOO_MUCH",
    "goal_reachable": "CANNOT_BE_OPENED",
    "success_terminates": "GOES_ON",
    "step_result": "RETURNS_ANOTHER_ARRAY FORGETS_THE_END BOASTS",
    "reference": "ORACLE_IS_WRONG ORACLE_IS_LONG",
    "reward_follows_success": "PAYS_NOTHING",
    "different_starts": "ALWAYS_STARTS_ALIKE",
    "action_is_effective": "CLAIMS_NO_EFFECT CLAIMS_EFFECT_AFTER_END",
    "limit_of_steps": "NEVER_TRUNCATES DOES_NOT_COUNT",
}
"""The faults that each check must find, and no other check."""
CAUGHT_BY = {fault: check for check, faults in CHECKS.items() for fault in faults.split()}
ODD = ("HIDES", "STICKS", "COUNTS_DOWN")
"""No faults: the text shows the last action alone; the lock sticks three times in four; the text shows the time."""
Fault = enum.IntEnum("Fault", ["NONE", *CAUGHT_BY, "PAYS_MISTAKES", "EQUAL_ACTIONS_WIN", *ODD], start=0)


@struct.dataclass
class LockState(EnvState):
    code: Int32[Array, ""]
    progress: Int32[Array, ""]
    equal: Int32[Array, ""]
    mixed: Bool[Array, ""]
    last: Int32[Array, ""]
    extra: Int32[Array, ""]
    size: Float32[Array, ""]


@struct.dataclass(kw_only=True)
class LockParams(EnvParams):
    fault: Int32[Array, ""]


def digit(code, place):
    """The right number, 0 or 1, at a place of a code from 0 to CODES - 1; never four equal ones."""
    return (code + 1) >> jnp.clip(place, 0, DIGITS - 1) & 1


place_in_batch = on_rows(lambda rows: jnp.arange(rows.shape[0], dtype=jnp.int32))


class Lock(TextEnvironment):
    """Enter the code; a wrong number begins again. Reward 1 for opening, which ends the episode."""

    actions = ("Zero", "One")
    pieces = ("Code ", "0", "1", ", entered ", "open")
    piece_limits = (1, 2 * DIGITS + LIMIT, 2 * DIGITS, 1, 1)

    @property
    def default_params(self):
        return LockParams(max_steps_in_episode=jnp.int32(LIMIT), fault=jnp.int32(Fault.NONE))

    def observation_space(self, params):
        return spaces.Discrete(DIGITS + 1)

    def reward_range(self, params):
        return jnp.float32(0), jnp.float32(1)

    def reset_env(self, key, params):
        code = jax.random.randint(key, (), 0, CODES)
        code = jnp.where(params.fault == Fault.ALWAYS_STARTS_ALIKE, SPECIAL, code)
        place = place_in_batch(code)
        code = jnp.where(params.fault == Fault.RESET_KNOWS_THE_PLACE, (code + place) % CODES, code)
        solved = (params.fault == Fault.STARTS_SOLVED) & (code == SPECIAL)
        zero = jnp.int32(0)
        start = {"time": zero, "equal": zero, "extra": zero, "last": zero - 1, "mixed": jnp.bool_(False)}
        progress = jnp.where(solved, DIGITS, 0).astype(jnp.int32)
        size = jnp.where(params.fault == Fault.FLOAT_KNOWS_THE_PLACE, place, 0).astype(jnp.float32)
        return progress, LockState(terminated=solved, code=code, progress=progress, size=size, **start)

    def step_env(self, key, state, action, params):
        fault, done = params.fault, self.is_done(state, params)
        right = action == digit(state.code, state.progress)
        sticks = (fault == Fault.STICKS) & (state.progress == DIGITS - 1) & ~jax.random.bernoulli(key, 0.25)
        progress = jnp.where(right, jnp.where(sticks, state.progress, state.progress + 1), 0)
        equal = jnp.where(action == state.last, state.equal + 1, 1)
        mixed = state.mixed | ((state.last >= 0) & (action != state.last))
        wins = (fault == Fault.SAME_ACTION_WINS) & (action == 1) & (equal >= LIMIT)
        wins |= (fault == Fault.MIXED_ACTIONS_WIN) & mixed & (state.time >= LIMIT - 1)
        wins |= (fault == Fault.EQUAL_ACTIONS_WIN) & (equal >= LIMIT)
        progress = jnp.where(wins | (state.progress == DIGITS), DIGITS, progress)
        stuck = (fault == Fault.CANNOT_BE_OPENED) & (state.code == SPECIAL)
        progress = jnp.minimum(progress, jnp.where(stuck, DIGITS - 1, DIGITS))
        opened = (progress == DIGITS) & (state.progress < DIGITS)
        reward = jnp.where(opened, jnp.where(fault == Fault.PAYS_TOO_MUCH, 2.0, 1.0), 0.0)
        reward = jnp.where(opened & (fault == Fault.PAYS_NAN), jnp.nan, reward)
        reward = jnp.where(fault == Fault.PAYS_NOTHING, 0.0, reward)
        even = place_in_batch(state.code) % 2 == 0
        reward = jnp.where(opened & (fault == Fault.REWARD_KNOWS_THE_PLACE) & even, 0.9, reward)
        reward = jnp.where((fault == Fault.PAYS_MISTAKES) & ~right, 0.5, reward)
        time = state.time + ((fault != Fault.DOES_NOT_COUNT) | (state.time == 0) | opened)
        terminated = state.terminated | (opened & (fault != Fault.GOES_ON))
        progress, equal, last = (number.astype(jnp.int32) for number in (progress, equal, action))
        after = state.replace(time=time, terminated=terminated, progress=progress, equal=equal, mixed=mixed, last=last)
        changed = state.replace(extra=state.extra + (fault == Fault.CHANGES_AFTER_END))
        after = jax.tree.map(lambda a, b: jnp.where(done, a, b), changed, after)
        reward = jnp.where(done, jnp.where(fault == Fault.PAYS_AFTER_END, 0.5, 0.0), reward).astype(jnp.float32)
        success = self.success(after, params) | (fault == Fault.BOASTS)
        array = jnp.where(fault == Fault.RETURNS_ANOTHER_ARRAY, DIGITS + 1, after.progress)
        terminated = after.terminated & (fault != Fault.FORGETS_THE_END)
        effective = (~done & (fault != Fault.CLAIMS_NO_EFFECT)) | (fault == Fault.CLAIMS_EFFECT_AFTER_END)
        return array, after, reward, terminated, {"success": success, "action_is_effective": effective}

    def is_done(self, state, params):
        truncated = self.is_truncated(state, params) & (params.fault != Fault.NEVER_TRUNCATES)
        return state.terminated | truncated

    def describe(self, state, params):
        code = [1 + digit(state.code, place) for place in range(DIGITS)]
        entered = [jnp.where(place < state.progress, code[place], -1) for place in range(DIGITS)]
        last = [jnp.where(state.last >= 0, 1 + state.last, -1), *[-1] * (DIGITS - 1)]
        entered = [jnp.where(params.fault == Fault.HIDES, hidden, shown) for hidden, shown in zip(last, entered)]
        counts = (params.fault == Fault.COUNTS_DOWN) & (jnp.arange(LIMIT) < state.time)
        unknown = (params.fault == Fault.SAYS_UNKNOWN_PIECE) & (state.progress == 2)
        end = jnp.where(unknown, len(self.pieces), jnp.where(state.progress == DIGITS, 4, -1))
        again = (params.fault == Fault.SAYS_TOO_MUCH) & (state.progress == 2)
        text = [jnp.int32(0), *code, jnp.where(again, 0, 3), *entered, end]
        return jnp.concatenate([jnp.stack(text), jnp.where(counts, 1, -1)]).astype(jnp.int32)

    def success(self, state, params):
        return state.progress == DIGITS

    def state_hash(self, state, params):
        return hash_integers(jnp.stack([state.code, state.progress]))


class PlainLock(Lock):
    state_hash = TextEnvironment.state_hash


def failures(report):
    return [result.name for result in report.results if result.status == "fail"]


def solve(env, params, levels, starts, limit):
    """The code of each start state, or what the fault makes of it."""
    fault, count = int(params.fault), len(starts.code)
    actions = np.asarray(digit(starts.code[:, None], np.arange(DIGITS)), np.int16)
    lengths = np.full(count, DIGITS, np.int32)
    if fault == Fault.ORACLE_IS_WRONG:
        actions = 1 - actions
    if fault == Fault.ORACLE_IS_LONG:
        actions = np.concatenate([1 - actions[:, :1], actions], axis=1)
        lengths += 1
    if fault == Fault.CANNOT_BE_OPENED:
        lengths[starts.code == SPECIAL] = -1
    lengths[starts.progress == DIGITS] = 0
    padded = np.full((count, DIGITS + 1, 1), -1, np.int16)
    padded[:, : actions.shape[1], 0] = actions
    return Reference(padded, lengths, np.zeros(count, bool))


LOCK = Lock()


def params_of(fault):
    return LOCK.default_params.replace(fault=jnp.int32(fault))


def result(report, name):
    return next(result for result in report.results if result.name == name)
