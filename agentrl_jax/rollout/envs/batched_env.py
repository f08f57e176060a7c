"""The engine's interface to environments: environments, prompts and response grammars of a batch of rows.

Shapes: `B` rows, `K` tasks, `P` prefix tokens, `O` observation tokens, `A` actions of one turn.
"""

import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float, Int, Key

from agentrl_jax.algos import masked
from agentrl_jax.rollout import rng
from agentrl_jax.rollout.contexts import Join, no_join
from agentrl_jax.rollout.envs.host_episodes import Report
from agentrl_jax.rollout.trajectory import EpisodeIds, Response, RolloutSettings, TurnResult, unplayed
from agentrl_jax.text.arguments import ArgumentTable, find_argument
from agentrl_jax.text.grammar import CommandGrammar, GrammarTable, ParsedResponse, ResponseGrammar
from agentrl_jax.text.prompt import Prompt, message, message_lead
from envs_jax.environment import TextEnvironment
from envs_jax.splits import Split, split_key
from envs_jax.token_environment import Command

IGNORED_BYTES = "ignored_bytes"
"""Environment information of commands: bytes of the response after the command, which nothing reads."""


class Message(struct.PyTreeNode):
    """Tokens inserted before the next response of B rows."""

    tokens: Int[Array, "B O"]
    """Padded on the right."""
    length: Int[Array, " B"]
    overflow: Bool[Array, " B"]
    """The message was longer than O and was cut."""
    join: Join
    """How it joins what the policy has read."""


class BatchedEnv(Protocol):
    """Interface to the environments of B rows. Implemented by `CompiledEnv`, `HostEnv`, `ContextEnv` and
    `replay.RecordedEnv`."""

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
        """Maximum tokens of an observation, with the text around it: O."""
        ...

    def reset(
        self, key: Key[Array, ""], settings: RolloutSettings, ids: EpisodeIds, mask: Bool[Array, " B"] | None = None
    ) -> tuple[Any, Message]:
        """Starts the episodes `ids` of the rows in `mask`, None for all.

        Returns the state, every leaf [B, ...], and the first observations. Results of the other rows are meaningless.
        """
        ...

    def step(
        self,
        settings: RolloutSettings,
        state: Any,
        response: Response,
        parsed: ParsedResponse,
        mask: Bool[Array, " B"],
        *,
        fresh: bool = False,
    ) -> tuple[Any, TurnResult, Message]:
        """Executes the responses of the rows in `mask`.

        The state of the other rows does not change; their results are meaningless. With `fresh` the next message is
        written to follow the prefix directly, without earlier turns; otherwise it continues the conversation.
        """
        ...

    def empty_result(self, batch: int) -> TurnResult:
        """A `TurnResult` of `batch` turns that were not played."""
        ...


def shared_prefix_len(batched_env: BatchedEnv) -> int:
    """Number of leading tokens that the prefixes of all tasks have in common."""
    prefix, shortest = np.asarray(batched_env.prefix), int(np.min(batched_env.prefix_length))
    return int(np.cumprod(np.all(prefix[:, :shortest] == prefix[0, :shortest], axis=0)).sum())


class PromptedEnv:
    """What a `BatchedEnv` derives from its K `tasks`, each of which has a `prompt` and a compiled `grammar`.

    The grammars keep the same number of actions per turn, A.
    """

    tasks: tuple[Any, ...]
    on_host = False
    """Whether some tasks play on the host: they cannot resample groups, and need a device for each replica."""

    def take_report(self) -> Report:
        """What happened on the host since the last report."""
        return Report()

    def clear(self) -> None:
        """Drops what runs on the host. Call it between rollouts, which may end episodes without a last step."""

    @property
    def info_keys(self) -> tuple[str, ...]:
        """Names of the numeric environment information of all tasks."""
        raise NotImplementedError

    @property
    def prefix(self) -> np.ndarray:
        """See `BatchedEnv.prefix`; padded with 0."""
        longest = self.prefix_length.max()
        rows = [np.pad(task.prompt.prefix, (0, longest - len(task.prompt.prefix))) for task in self.tasks]
        return np.stack(rows).astype(np.int32)

    @property
    def prefix_length(self) -> np.ndarray:
        """See `BatchedEnv.prefix_length`."""
        return np.array([len(task.prompt.prefix) for task in self.tasks], np.int32)

    @property
    def hint_at(self) -> np.ndarray:
        """i32[K] number of prefix tokens of each task before a hint, see `rollout.hints`."""
        return np.array([task.prompt.hint_at for task in self.tasks], np.int32)

    @property
    def grammars(self) -> tuple[GrammarTable, ...]:
        """See `BatchedEnv.grammars`."""
        return tuple(task.grammar for task in self.tasks)

    @property
    def observation_tokens(self) -> int:
        """See `BatchedEnv.observation_tokens`."""
        return max(task.prompt.max_message_tokens for task in self.tasks)

    @property
    def max_actions_per_turn(self) -> int:
        """A."""
        return self.tasks[0].grammar.max_actions

    def empty_result(self, batch: int) -> TurnResult:
        """See `BatchedEnv.empty_result`."""
        return unplayed(batch, self.max_actions_per_turn, self.info_keys)

    def _observation(self, index: int, settings: RolloutSettings, shown: Any) -> Int[Array, " pieces"]:
        """The observation of one row, whose task is `index`, for `text.prompt.message`."""
        raise NotImplementedError

    def _messages(
        self,
        settings: RolloutSettings,
        state: Any,
        shown: Any,
        reward: Float[Array, " B"],
        first: Bool[Array, " B"],
        response_ended: Bool[Array, " B"],
        retry: Bool[Array, " B"] | None = None,
    ) -> Message:
        """Messages of B rows, each formatted by the prompt of its task, see `text.prompt.message`; `retry` None: none.

        `shown`, with leaves [B, ...], is what `_observation` reads. `state` has the task of each row (`task`), and how
        many turns are finished (`turn`) and actions executed (`used`).
        """
        prompts, capacity = [task.prompt for task in self.tasks], self.observation_tokens

        def row(task, shown, fields):
            def write(index, prompt, shown, fields):
                tokens, length = message(prompt, self._observation(index, settings, shown), **fields)
                lead = message_lead(prompt, **{name: x for name, x in fields.items() if name != "retry"})
                return jnp.pad(tokens, (0, capacity - tokens.shape[0])), length, lead

            branches = [functools.partial(write, index, prompt) for index, prompt in enumerate(prompts)]
            return jax.lax.switch(task, branches, shown, fields)

        fields = {
            "turn": state.turn,
            "actions_left": settings.max_actions - state.used,
            "reward": reward,
            "first": first,
            "response_ended": response_ended,
        }
        if retry is not None:
            fields["retry"] = retry
        tokens, length, lead = jax.vmap(row)(state.task, shown, fields)
        limits = jnp.array([prompt.max_message_tokens for prompt in prompts])[state.task]
        join = no_join(len(length)).replace(lead=lead)
        return Message(tokens=tokens, length=jnp.minimum(length, limits), overflow=length > limits, join=join)


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """One compiled environment with its prompt and response grammar."""

    name: str
    """Shown in metrics."""
    env: TextEnvironment
    env_params: Any
    """Default parameters; a rollout uses those in its settings."""
    prompt: Prompt
    grammar: GrammarTable
    response_format: ResponseGrammar | CommandGrammar
    """`grammar`, before it was compiled."""
    with_feedback: Callable[[], "Task"] | None = None
    """Makes the same task with a prompt that has the feedback of retries."""
    arguments: ArgumentTable | None = None
    """Of a `TokenEnvironment`: finds the arguments of its commands."""

    has_items = False
    """Whether levels are numbered items, as those of services and Python environments are."""

    @property
    def lists_actions(self) -> bool:
        """Whether the agent's prompt lists the actions."""
        return self.env.lists_actions

    @property
    def has_boards(self) -> bool:
        """Whether a level can be given as a board, i8[H, W]."""
        return self.env.has_levels


class EpisodeState(struct.PyTreeNode):
    """State of B compiled episodes."""

    task: Int[Array, " B"]
    envs: tuple[Any, ...]
    """One state per task, [B, ...]; only the state of the row's task is used."""
    noise_key: Key[Array, " B"]
    turn: Int[Array, " B"]
    """Turns finished."""
    used: Int[Array, " B"]
    """Primitive actions executed."""
    no_level: Bool[Array, " B"]
    """No level of the split was found, so the episode fails."""


@dataclasses.dataclass(frozen=True, eq=False)
class CompiledEnv(PromptedEnv):
    """Environments that run inside the compiled loop. Every row has a state of every task, so a batch can mix tasks."""

    tasks: tuple[Task, ...]
    shared_noise: bool = False
    """Members of a group get the same environment noise."""

    @property
    def env_params(self) -> tuple[Any, ...]:
        """Default parameters of the tasks' environments, for `RolloutSettings.env_params`."""
        return tuple(task.env_params for task in self.tasks)

    def levels(self, task: int) -> int:
        """Number of levels in a task's pack; 0 if levels come from its generator."""
        pack = getattr(self.tasks[task].env_params, "levels", None)
        return 0 if pack is None else pack.shape[0]

    def for_retries(self) -> "CompiledEnv":
        """The same environments with prompts that have the feedback of retries."""
        tasks = tuple(task.with_feedback() for task in self.tasks if task.with_feedback is not None)
        return dataclasses.replace(self, tasks=tasks)

    @property
    def info_keys(self) -> tuple[str, ...]:
        """See `PromptedEnv.info_keys`."""

        def info(env, key, params):
            return env.step_env(key, env.reset_env(key, params)[1], env.null_action, params)[4]

        key = jax.random.key(0)
        infos = [jax.eval_shape(functools.partial(info, task.env), key, task.env_params) for task in self.tasks]
        counted = {IGNORED_BYTES for task in self.tasks if task.arguments is not None}
        return tuple(sorted(counted.union(*infos) - {"success"}))

    def reset(
        self, key: Key[Array, ""], settings: RolloutSettings, ids: EpisodeIds, mask: Bool[Array, " B"] | None = None
    ) -> tuple[EpisodeState, Message]:
        """See `BatchedEnv.reset`. Resets all rows, since a reset has no side effects."""
        level_keys = rng.level_key(key, ids)
        splits = jnp.broadcast_to(settings.split, len(self.tasks))
        envs, found = [], []
        for index, (task, params) in enumerate(zip(self.tasks, settings.env_params)):
            reset = functools.partial(start_state, task.env, params=params, split=splits[index])
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
        reward, first, ended = jnp.zeros(rows, jnp.float32), jnp.ones(rows, bool), jnp.zeros(rows, bool)
        return state, self._messages(settings, state, state.envs, reward, first, ended)

    def step(
        self,
        settings: RolloutSettings,
        state: EpisodeState,
        response: Response,
        parsed: ParsedResponse,
        mask: Bool[Array, " B"],
        *,
        fresh: bool = False,
    ) -> tuple[EpisodeState, TurnResult, Message]:
        """See `BatchedEnv.step`."""
        # `lax.switch` per row would compute all tasks too, and `envs_jax.batching.on_rows` cannot be used in it.
        by_task = [
            jax.vmap(functools.partial(self._step_row, index), in_axes=(None, 0, 0))(settings, parsed, state)
            if task.arguments is None
            else jax.vmap(functools.partial(self._step_command, index, task.arguments, settings))(
                response, parsed, state
            )
            for index, task in enumerate(self.tasks)
        ]
        stepped, result = by_task[0]
        for index, found in enumerate(by_task[1:], start=1):
            stepped, result = masked.where(state.task == index, found, (stepped, result))
        state = masked.where(mask, stepped, state)
        first = jnp.full(mask.shape, fresh)
        return state, result, self._messages(settings, state, state.envs, result.reward, first, response.ended)

    def restart_level(
        self,
        settings: RolloutSettings,
        state: EpisodeState,
        start: EpisodeState,
        mask: Bool[Array, " B"],
        reward: Float[Array, " B"],
        response_ended: Bool[Array, " B"],
        *,
        fresh: bool = False,
    ) -> tuple[EpisodeState, Message]:
        """Begins the level of the rows in `mask` again, with new noise and the feedback of the task's prompt.

        `start` is the state that `reset` returned; reward and end are those of the last turn. What is returned of the
        other rows is meaningless.
        """
        state = state.replace(
            envs=start.envs,
            noise_key=rng.retry_noise_key(state.noise_key),
            turn=jnp.zeros_like(state.turn),
            used=jnp.zeros_like(state.used),
        )
        first = jnp.full(mask.shape, fresh)
        return state, self._messages(settings, state, state.envs, reward, first, response_ended, mask)

    def _observation(self, index: int, settings: RolloutSettings, shown: Any) -> Int[Array, " pieces"]:
        return self.tasks[index].env.describe(shown[index], settings.env_params[index])

    def _step_row(
        self, index: int, settings: RolloutSettings, parsed: ParsedResponse, state: EpisodeState
    ) -> tuple[EpisodeState, TurnResult]:
        """Executes up to A valid actions of one row in the environment of task `index`.

        Stops where the episode ends or the action budget is used up.
        """
        env, params, info_keys = self.tasks[index].env, settings.env_params[index], self.info_keys

        def step(carry, inputs):
            env_state, used, info = carry
            number, action = inputs
            run = (number < parsed.num_valid) & (used < settings.max_actions) & ~env.is_done(env_state, params)
            key = rng.action_key(state.noise_key, used)
            _, moved, reward, _, news = env.step_env(key, env_state, jnp.maximum(action, 0), params)
            news = {name: jnp.asarray(news.get(name, 0.0), jnp.float32) for name in info_keys}
            env_state, info = jax.tree.map(lambda a, b: jnp.where(run, a, b), (moved, news), (env_state, info))
            return (env_state, used + run, info), (jnp.where(run, reward, 0.0), jnp.where(run, action, -1))

        before = state.envs[index]
        info = {name: jnp.float32(0) for name in info_keys}
        (after, used, info), (rewards, actions) = jax.lax.scan(
            step, (before, state.used, info), (jnp.arange(len(parsed.actions)), parsed.actions), unroll=True
        )
        return self._finished(index, settings, parsed, state, after, used, rewards, actions, info)

    def _step_command(
        self,
        index: int,
        arguments: ArgumentTable,
        settings: RolloutSettings,
        response: Response,
        parsed: ParsedResponse,
        state: EpisodeState,
    ) -> tuple[EpisodeState, TurnResult]:
        """Gives the command of one row to the environment of task `index`, also if there is none."""
        env, params = self.tasks[index].env, settings.env_params[index]
        number = parsed.actions[0]
        found = find_argument(arguments, number, response.tokens, response.length, env.argument_bytes)
        before = state.envs[index]
        run = (state.used < settings.max_actions) & ~env.is_done(before, params)
        key = rng.action_key(state.noise_key, state.used)
        command = Command(action=number, text=found.text, length=found.length)
        _, moved, reward, _, news = env.step_env(key, before, command, params)
        news = {**news, IGNORED_BYTES: found.ignored}
        info = {name: jnp.where(run, jnp.float32(news.get(name, 0)), 0.0) for name in self.info_keys}
        after = jax.tree.map(lambda a, b: jnp.where(run, a, b), moved, before)
        rewards, actions = jnp.where(run, reward, 0.0)[None], jnp.where(run, parsed.actions, -1)
        return self._finished(index, settings, parsed, state, after, state.used + run, rewards, actions, info)

    def _finished(
        self,
        index: int,
        settings: RolloutSettings,
        parsed: ParsedResponse,
        state: EpisodeState,
        after: Any,
        used: Int[Array, ""],
        rewards: Float[Array, " executed"],
        actions: Int[Array, " A"],
        info: dict[str, Float[Array, ""]],
    ) -> tuple[EpisodeState, TurnResult]:
        """The state and the result of a turn that ends in the environment state `after`."""
        env, params, before = self.tasks[index].env, settings.env_params[index], state.envs[index]
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
        return state.replace(envs=envs, turn=state.turn + 1, used=used), result


def start_state(
    env: TextEnvironment,
    key: Key[Array, ""],
    level: Int[Array, ""],
    wanted: Bool[Array, ""],
    *,
    params: Any,
    split: Int[Array, ""],
) -> tuple[Any, Bool[Array, ""]]:
    """Initial state of a level (row `level` of the pack, or sampled from a split), and whether one was found.

    A level that is not `wanted` may be of any split. Numbered levels were chosen among those that are of the split.
    """
    of_split = jnp.where(wanted & (level < 0), split, Split.ANY)
    key, found = split_key(env, key, params, of_split, first_is_of=level <= rng.FIRST_NUMBERED)
    sampled = env.reset_env(key, params)[1]
    pack = getattr(params, "levels", None)
    if pack is None or pack.shape[0] == 0:
        return sampled, found
    given = env.reset_to_level(pack[jnp.maximum(level, 0) % pack.shape[0]], params)[1]
    return jax.tree.map(lambda a, b: jnp.where(level >= 0, a, b), given, sampled), found
