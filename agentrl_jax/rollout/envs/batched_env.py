"""The engine's interface to environments: environments, prompts and response grammars of a batch of rows.

Shapes: `B` rows, `K` tasks, `P` prefix tokens, `O` observation tokens, `A` actions of one turn.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from agentrl_jax.algos import masked
from agentrl_jax.rollout import rng
from agentrl_jax.rollout.trajectory import EpisodeIds, Response, RolloutSettings, TurnResult, unplayed
from agentrl_jax.text.grammar import GrammarTable, ParsedResponse
from agentrl_jax.text.prompt import Prompt, message
from envs_jax.environment import TextEnvironment
from envs_jax.splits import Split, split_key


class Message(struct.PyTreeNode):
    """Tokens inserted before the next response of B rows.

    Attributes:
        tokens: i32[B, O] padded on the right.
        length: i32[B] number of tokens, at most O.
        overflow: bool[B] the message was longer than O and was cut.
    """

    tokens: jax.Array
    length: jax.Array
    overflow: jax.Array


class BatchedEnv(Protocol):
    """Interface to the environments of B rows. Implemented by `CompiledEnv`, `HostEnv` and `replay.RecordedEnv`."""

    @property
    def prefix(self) -> np.ndarray | jax.Array:
        """i32[K, P] tokens at the start of every context of a task."""
        ...

    @property
    def prefix_length(self) -> np.ndarray | jax.Array:
        """i32[K] number of prefix tokens of each task."""
        ...

    @property
    def grammars(self) -> tuple[GrammarTable, ...]:
        """Response grammars of the K tasks."""
        ...

    @property
    def observation_tokens(self) -> int:
        """Maximum tokens of an observation: O."""
        ...

    def reset(
        self, key: jax.Array, settings: RolloutSettings, ids: EpisodeIds, mask: jax.Array | None = None
    ) -> tuple[Any, Message]:
        """Starts the episodes `ids` [B] of the rows in `mask` bool[B], None for all.

        Returns the state, every leaf [B, ...], and the first observations. Results of the other rows are meaningless.
        """
        ...

    def step(
        self,
        settings: RolloutSettings,
        state: Any,
        response: Response,
        parsed: ParsedResponse,
        mask: jax.Array,
        *,
        opens: bool,
    ) -> tuple[Any, TurnResult, Message]:
        """Executes the responses of the rows in `mask` bool[B].

        The state of the other rows does not change; their results are meaningless. With `opens` the next message is
        written to follow the prefix directly, without earlier turns; otherwise it continues the conversation.
        """
        ...

    def empty_result(self, batch: int) -> TurnResult:
        """A `TurnResult` of `batch` turns that were not played."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """One compiled environment with its prompt and response grammar.

    Attributes:
        name: shown in metrics.
        env: the environment.
        env_params: default parameters; a rollout uses those in its settings.
        prompt: compiled prompt.
        grammar: compiled response grammar.
    """

    name: str
    env: TextEnvironment
    env_params: Any
    prompt: Prompt
    grammar: GrammarTable


class EpisodeState(struct.PyTreeNode):
    """State of B compiled episodes.

    Attributes:
        task: i32[B].
        envs: one state per task, [B, ...]; only the state of the row's task is used.
        noise_key: key[B] of the environment noise.
        turn: i32[B] turns answered.
        used: i32[B] primitive actions executed.
        no_level: bool[B] no level of the split was found, so the episode fails.
    """

    task: jax.Array
    envs: tuple[Any, ...]
    noise_key: jax.Array
    turn: jax.Array
    used: jax.Array
    no_level: jax.Array


class Prompted:
    """The properties of a `BatchedEnv` that follow from the prompts of its K tasks."""

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Prompts of the K tasks."""
        raise NotImplementedError

    @property
    def prefix(self) -> np.ndarray:
        """i32[K, P] prefix tokens, padded with 0."""
        longest = self.prefix_length.max()
        rows = [np.pad(prompt.prefix, (0, longest - len(prompt.prefix))) for prompt in self.prompts]
        return np.stack(rows).astype(np.int32)

    @property
    def prefix_length(self) -> np.ndarray:
        """i32[K]."""
        return np.array([len(prompt.prefix) for prompt in self.prompts], np.int32)

    @property
    def observation_tokens(self) -> int:
        """O: tokens of the longest message of any task, with the text around the observation."""
        return max(prompt.max_message_tokens for prompt in self.prompts)


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledEnv(Prompted):
    """Environments that run inside the compiled loop. Every row has a state of every task, so a batch can mix tasks.

    Attributes:
        tasks: K tasks; their grammars keep the same number of actions per turn, A.
        shared_noise: members of a group get the same environment noise.
    """

    tasks: tuple[Task, ...]
    shared_noise: bool = False

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        """Prompts of the K tasks."""
        return tuple(task.prompt for task in self.tasks)

    @property
    def grammars(self) -> tuple[GrammarTable, ...]:
        """Response grammars of the K tasks."""
        return tuple(task.grammar for task in self.tasks)

    @property
    def max_actions_per_turn(self) -> int:
        """A."""
        return self.tasks[0].grammar.max_actions

    @property
    def env_params(self) -> tuple[Any, ...]:
        """Default parameters of the tasks' environments, for `RolloutSettings.env_params`."""
        return tuple(task.env_params for task in self.tasks)

    def levels(self, task: int) -> int:
        """Number of levels in a task's pack; 0 if levels come from its generator."""
        pack = getattr(self.tasks[task].env_params, "levels", None)
        return 0 if pack is None else pack.shape[0]

    @property
    def info_keys(self) -> tuple[str, ...]:
        """Names of the numeric environment information of all tasks."""
        names: set[str] = set()
        for task in self.tasks:
            names |= set(_info_shapes(task))
        return tuple(sorted(names - {"success"}))

    def reset(
        self, key: jax.Array, settings: RolloutSettings, ids: EpisodeIds, mask: jax.Array | None = None
    ) -> tuple[EpisodeState, Message]:
        """See `BatchedEnv.reset`. Resets all rows, since a reset has no side effects."""
        level_keys = rng.level_key(key, ids)
        splits = jnp.broadcast_to(settings.split, len(self.tasks))
        envs, found = [], []
        for index, (task, params) in enumerate(zip(self.tasks, settings.env_params)):
            reset = functools.partial(_reset, task.env, params=params, split=splits[index])
            # Rows of other tasks need no level of this one.
            started, has_level = jax.vmap(reset)(level_keys, ids.level, ids.task == index)
            envs.append(started)
            found.append(has_level)
        rows = ids.task.shape[0]
        state = EpisodeState(
            task=ids.task,
            envs=tuple(envs),
            noise_key=rng.noise_key(key, ids, shared=self.shared_noise),
            turn=jnp.zeros(rows, jnp.int32),
            used=jnp.zeros(rows, jnp.int32),
            no_level=~functools.reduce(operator.and_, found),
        )
        nothing = jnp.zeros(rows, jnp.float32)
        return state, self._message(settings, state, nothing, jnp.ones(rows, bool), jnp.zeros(rows, bool))

    def step(
        self,
        settings: RolloutSettings,
        state: EpisodeState,
        response: Response,
        parsed: ParsedResponse,
        mask: jax.Array,
        *,
        opens: bool,
    ) -> tuple[EpisodeState, TurnResult, Message]:
        """See `BatchedEnv.step`."""
        answered, result = jax.vmap(self._act_row, in_axes=(None, 0, 0))(settings, state, parsed)
        state = masked.where(mask, answered, state)
        first = jnp.full(mask.shape, opens)
        return state, result, self._message(settings, state, result.reward, first, response.ended)

    def empty_result(self, batch: int) -> TurnResult:
        """See `BatchedEnv.empty_result`."""
        return unplayed(batch, self.max_actions_per_turn, self.info_keys)

    def _act_row(self, settings: RolloutSettings, state: EpisodeState, parsed: ParsedResponse):
        """Executes the valid actions of one row in the environment of its task."""
        branches = [
            lambda s, i=i, task=task: _play(task, i, self.info_keys, settings, s, parsed)
            for i, task in enumerate(self.tasks)
        ]
        return jax.lax.switch(state.task, branches, state)

    def _message(self, settings, state: EpisodeState, reward, first, response_ended) -> Message:
        return write_messages(
            self.prompts,
            lambda index, envs: self.tasks[index].env.describe(envs[index], settings.env_params[index]),
            state.task,
            state.envs,
            turn=state.turn,
            actions_left=settings.max_actions - state.used,
            reward=reward,
            first=first,
            response_ended=response_ended,
        )


def shared_prefix_len(batched_env: BatchedEnv) -> int:
    """Number of leading tokens that the prefixes of all tasks have in common."""
    prefix, shortest = np.asarray(batched_env.prefix), int(np.min(batched_env.prefix_length))
    return int(np.cumprod(np.all(prefix[:, :shortest] == prefix[0, :shortest], axis=0)).sum())


def write_messages(
    prompts: Sequence[Prompt],
    observe: Callable[[int, Any], jax.Array],
    task: jax.Array,
    states: Any,
    *,
    turn: jax.Array,
    actions_left: jax.Array,
    reward: jax.Array,
    first: jax.Array,
    response_ended: jax.Array,
) -> Message:
    """Messages of B rows, each formatted by the prompt of its task.

    Args:
        prompts: K prompts.
        observe: maps (index of a task, one row of `states`) to the row's observation for `text.prompt.message`.
        task: i32[B].
        states: leaves [B, ...].
        turn: i32[B]; this and the next arguments are those of `text.prompt.message`.
        actions_left: i32[B].
        reward: f32[B].
        first: bool[B].
        response_ended: bool[B].
    """
    capacity = max(prompt.max_message_tokens for prompt in prompts)

    def row(task, state, fields):
        def write(index, prompt, state, fields):
            tokens, length = message(prompt, observe(index, state), **fields)
            return jnp.pad(tokens, (0, capacity - tokens.shape[0])), length

        branches = [functools.partial(write, index, prompt) for index, prompt in enumerate(prompts)]
        return jax.lax.switch(task, branches, state, fields)

    fields = {
        "turn": turn,
        "actions_left": actions_left,
        "reward": reward,
        "first": first,
        "response_ended": response_ended,
    }
    tokens, length = jax.vmap(row)(task, states, fields)
    limits = jnp.array([prompt.max_message_tokens for prompt in prompts])[task]
    return Message(tokens=tokens, length=jnp.minimum(length, limits), overflow=length > limits)


def _reset(
    env: TextEnvironment, key: jax.Array, level: jax.Array, wanted: jax.Array, *, params: Any, split: jax.Array
) -> tuple[Any, jax.Array]:
    """Initial state of a level (row `level` of the pack, or sampled from a split), and bool[]: one was found."""
    key, found = split_key(env, key, params, jnp.where(wanted & (level < 0), split, Split.ANY))
    drawn = env.reset_env(key, params)[1]
    pack = getattr(params, "levels", None)
    if pack is None or pack.shape[0] == 0:
        return drawn, found
    given = env.reset_to_level(pack[jnp.maximum(level, 0) % pack.shape[0]], params)[1]
    return jax.tree.map(lambda a, b: jnp.where(level >= 0, a, b), given, drawn), found


def _info_shapes(task: Task) -> Mapping[str, Any]:
    def one_step(key, params):
        state = task.env.reset_env(key, params)[1]
        return task.env.step_env(key, state, jnp.int32(0), params)[4]

    return jax.eval_shape(one_step, jax.random.key(0), task.env_params)


def _play(task: Task, index: int, info_keys, settings: RolloutSettings, state: EpisodeState, parsed: ParsedResponse):
    """Executes up to A valid actions of one row until the episode ends or the action budget is used up."""
    env, params = task.env, settings.env_params[index]

    def step(carry, inputs):
        env_state, used, info = carry
        number, action = inputs
        run = (number < parsed.num_valid) & (used < settings.max_actions) & ~env.is_done(env_state, params)
        key = jax.random.fold_in(state.noise_key, used)
        _, moved, reward, _, news = env.step_env(key, env_state, jnp.maximum(action, 0), params)
        news = {name: jnp.asarray(news.get(name, 0.0), jnp.float32) for name in info_keys}
        env_state, info = jax.tree.map(lambda a, b: jnp.where(run, a, b), (moved, news), (env_state, info))
        return (env_state, used + run, info), (jnp.where(run, reward, 0.0), jnp.where(run, action, -1))

    before = state.envs[index]
    numbers = jnp.arange(parsed.actions.shape[0])
    info = {name: jnp.float32(0) for name in info_keys}
    (after, used, info), (rewards, actions) = jax.lax.scan(
        step, (before, state.used, info), (numbers, parsed.actions), unroll=True
    )
    done = env.is_done(after, params)
    result = TurnResult(
        actions=actions,
        reward=jnp.sum(rewards),
        valid=parsed.num_valid > 0,
        format_error=((parsed.num_valid != parsed.num_parsed) | (parsed.num_valid == 0)).astype(jnp.int32),
        state_hash=env.state_hash(before, params),
        terminated=env.is_terminated(after, params),
        truncated=(used >= settings.max_actions) & ~done
        | env.is_truncated(after, params) & ~env.is_terminated(after, params),
        success=env.success(after, params),
        failed=state.no_level,
        info=info,
    )
    envs = (*state.envs[:index], after, *state.envs[index + 1 :])
    return dataclasses.replace(state, envs=envs, turn=state.turn + 1, used=used), result
