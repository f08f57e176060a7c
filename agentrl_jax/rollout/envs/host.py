"""Python environments for the engine: one host callback per turn for the whole local batch.

Shapes: `B` rows, `K` tasks, `O` message tokens.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax.experimental import io_callback
from jaxtyping import Array, Bool, Float, Int, Key

from agentrl_jax.errors import BadValue
from agentrl_jax.rollout import rng
from agentrl_jax.rollout.envs.batched_env import Message, PromptedEnv
from agentrl_jax.rollout.envs.host_environment import HostTask
from agentrl_jax.rollout.envs.host_episodes import HostEpisodes, Report
from agentrl_jax.rollout.envs.host_retry import with_room
from agentrl_jax.rollout.trajectory import EpisodeIds, Response, RolloutSettings, TurnResult
from agentrl_jax.text.grammar import ParsedResponse
from agentrl_jax.text.tokenizer import Tokenizer

PART_BYTES = 64 * 1024
"""Maximum bytes of one piece of a callback argument, see `_call`."""


class HostState(struct.PyTreeNode):
    """Device state of B host episodes."""

    identity: Int[Array, "B 5"]
    """Rows of `host_episodes.Identity`, which identify the episodes on the host."""
    task: Int[Array, " B"]
    turn: Int[Array, " B"]
    """Turns finished."""
    used: Int[Array, " B"]
    """Actions executed."""


class HostEnv(PromptedEnv):
    """Host environments as a `BatchedEnv`.

    Every `reset` and every `step` is one ordered `io_callback` over the local batch. Under `jax.shard_map` each device
    makes its own calls, in its own order. An episode's environment is found by the rollout's key, task, group and
    member, never by slot or device. So the same rollout must not run twice at the same time in one `HostEnv`.

    The seed of an episode is its `level` if that is not negative, otherwise 32 bits of its level key.
    """

    on_host = True

    def __init__(
        self,
        tasks: tuple[HostTask, ...],
        tokenizer: Tokenizer,
        *,
        deadline: float,
        workers: int = 64,
        restarts: bool = False,
    ):
        """Creates the interface, without episodes. The tasks must have been made with the same tokenizer.

        Args:
            tasks: K tasks.
            tokenizer: the tokenizer.
            deadline: seconds that one call may take; rows without an answer by then fail. With more rows than `workers`
                it includes the time that rows wait for a worker.
            workers: most environments that run at once.
            restarts: keeps what `restart_level` needs of episodes that are over.

        Raises:
            ValueError: `deadline` or `workers` is not positive, or tasks keep different numbers of actions per turn.
        """
        for name, value in {"deadline": deadline, "workers": workers}.items():
            if not value > 0:
                raise BadValue.of(name, value, "expected more than 0")
        if len({task.grammar.max_actions for task in tasks}) != 1:
            raise BadValue(
                f"grammars of {len(tasks)} tasks that do not keep one number of actions per turn; expected at least "
                "one task and the same max_actions in all",
                key="grammars",
                value=len(tasks),
            )
        self.tasks = tasks
        self._made_with: dict[str, Any] = {"tokenizer": tokenizer, "deadline": deadline, "workers": workers}
        self.host_episodes = HostEpisodes(tasks, tokenizer, deadline=deadline, workers=workers, restarts=restarts)

    def for_retries(self) -> "HostEnv":
        """The same environments with room for the feedback of retries, and what `restart_level` needs."""
        tasks = tuple(with_room(task, self._made_with["tokenizer"]) for task in self.tasks)
        return HostEnv(tasks, **self._made_with, restarts=True)

    @property
    def info_keys(self) -> tuple[str, ...]:
        """See `PromptedEnv.info_keys`."""
        return self.host_episodes.info_keys

    @property
    def env_params(self) -> tuple[()]:
        """Empty: host environments have no parameters on the device."""
        return ()

    def take_report(self) -> Report:
        """See `PromptedEnv.take_report`."""
        return self.host_episodes.take_report()

    def clear(self) -> None:
        """See `PromptedEnv.clear`."""
        self.host_episodes.clear()

    def levels(self, task: int) -> int:
        """Number of levels of a task; 0 if every seed makes a level."""
        return self.tasks[task].levels

    def reset(
        self, key: Key[Array, ""], settings: RolloutSettings, ids: EpisodeIds, mask: Bool[Array, " B"] | None = None
    ) -> tuple[HostState, Message]:
        """See `BatchedEnv.reset`."""
        rows = ids.task.shape[0]
        bits = jax.lax.bitcast_convert_type(jax.random.key_data(key), jnp.int32)
        numbers = jnp.stack((ids.task, ids.group, ids.member), axis=1)
        state = HostState(
            identity=jnp.concatenate([jnp.broadcast_to(bits, (rows, *bits.shape)), numbers], axis=1),
            task=ids.task,
            turn=jnp.zeros(rows, jnp.int32),
            used=jnp.zeros(rows, jnp.int32),
        )
        sampled = jax.random.key_data(rng.level_key(key, ids))[:, -1]
        seed = jnp.where(ids.level >= 0, ids.level.astype(jnp.uint32), sampled)
        wanted = jnp.ones(rows, bool) if mask is None else mask
        observations = _call(self.host_episodes.reset, self._observations(rows), state.identity, seed, wanted)
        first = jnp.ones(rows, bool)
        return state, self._message(settings, state, observations, jnp.zeros(rows, jnp.float32), first, ~first)

    def step(
        self,
        settings: RolloutSettings,
        state: HostState,
        response: Response,
        parsed: ParsedResponse,
        mask: Bool[Array, " B"],
        *,
        fresh: bool = False,
    ) -> tuple[HostState, TurnResult, Message]:
        """See `BatchedEnv.step`. The host parses the responses again for their text; the result equals `parsed`."""
        rows = mask.shape[0]
        turns = settings.turns_of(state.task)
        sent = (state.identity, state.turn, state.used, turns, settings.max_actions)
        shapes = (jax.eval_shape(lambda: self.empty_result(rows)), *self._observations(rows))
        result, *observations = _call(self.host_episodes.step, shapes, *sent, response.tokens, response.length, mask)
        executed = jnp.sum(result.actions >= 0, axis=1, dtype=jnp.int32)
        state = state.replace(turn=state.turn + mask, used=state.used + executed)
        first = jnp.full(rows, fresh)
        return state, result, self._message(settings, state, observations, result.reward, first, response.ended)

    def restart_level(
        self,
        settings: RolloutSettings,
        state: HostState,
        start: HostState,
        mask: Bool[Array, " B"],
        reward: Float[Array, " B"],
        response_ended: Bool[Array, " B"],
        *,
        fresh: bool = False,
    ) -> tuple[HostState, Message]:
        """See `CompiledEnv.restart_level`; a new environment gets the same seed, so that its noise is the same, too.

        The host is called only where some row begins again. The environment must have been made with `restarts`.
        """
        rows = mask.shape[0]
        shapes = self._observations(rows)
        observations = jax.lax.cond(
            jnp.any(mask),
            lambda: _call(self.host_episodes.restart, shapes, state.identity, mask),
            lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes),
        )
        state = state.replace(turn=jnp.zeros_like(state.turn), used=jnp.zeros_like(state.used))
        return state, self._message(settings, state, observations, reward, jnp.full(rows, fresh), response_ended)

    def _observations(self, rows: int) -> tuple[Any, Any]:
        """Shapes of the observations that `HostEpisodes` returns."""
        width = max(task.observation_tokens for task in self.tasks)
        return jax.ShapeDtypeStruct((rows, width), jnp.int32), jax.ShapeDtypeStruct((rows,), jnp.bool_)

    def _observation(self, index: int, settings: RolloutSettings, shown: Any) -> Int[Array, " pieces"]:
        return shown

    def _message(self, settings, state: HostState, observations, reward, first, response_ended) -> Message:
        tokens, overflow = observations
        message = self._messages(settings, state, tokens, reward, first, response_ended)
        return message.replace(overflow=message.overflow | overflow)


def _call(function: Callable[..., Any], shapes: Any, *args: jax.Array) -> Any:
    """Calls `function` with NumPy arrays in one ordered callback.

    JAX passes JAX arrays to a callback. On CPU, arrays above 100 KiB are copied by the threads that run programs. If
    all of these threads wait in callbacks (many devices on few cores), none can copy, and the program deadlocks.
    Smaller arrays are copied immediately, so large arguments are split.
    """
    arg_shapes = [x.shape for x in args]
    counts = [max(1, -(-x.size * x.dtype.itemsize // PART_BYTES)) for x in args]

    def on_host(*parts: Any) -> Any:
        remaining = iter(parts)
        split = [[np.asarray(next(remaining)) for _ in range(count)] for count in counts]
        return function(*(np.concatenate(x).reshape(shape) for x, shape in zip(split, arg_shapes)))

    parts = [part for x, count in zip(args, counts) for part in jnp.array_split(x.reshape(-1), count)]
    return io_callback(on_host, shapes, *parts, ordered=True)
