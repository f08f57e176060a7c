"""Compiled tasks and tasks on the host in one batch. Shapes: `B` rows, `K` tasks, `O` message tokens."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from agentrl_jax.algos import masked
from agentrl_jax.errors import BadValue
from agentrl_jax.rollout.envs.batched_env import BatchedEnv, CompiledEnv, Message, PromptedEnv
from agentrl_jax.rollout.envs.host import HostEnv
from agentrl_jax.rollout.envs.host_episodes import Report
from agentrl_jax.rollout.envs.retry import RetryEnv
from agentrl_jax.rollout.trajectory import EpisodeIds, Response, RolloutSettings, TurnResult
from agentrl_jax.text.grammar import ParsedResponse


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Tasks that are played together."""

    env: CompiledEnv | HostEnv
    numbers: tuple[int, ...]
    """Of its tasks among the K."""
    max_actions: int | None = None
    """Actions that its episodes may execute, in place of `RolloutSettings.max_actions`."""

    def own(self, task: Int[Array, " B"]) -> Int[Array, " B"]:
        """The task of each row among its own; -1 for a row of another part."""
        found = jnp.full(task.shape, -1)
        for index, number in enumerate(self.numbers):
            found = jnp.where(task == number, index, found)
        return found

    def settings(self, settings: RolloutSettings) -> RolloutSettings:
        """The settings of its tasks, in place of those of all K."""
        split, most = jnp.asarray(settings.split), self.max_actions
        return settings.replace(
            env_params=tuple(settings.env_params[number] for number in self.numbers),
            split=split[jnp.array(self.numbers)] if split.ndim else split,
            task_turns=None if settings.task_turns is None else settings.task_turns[jnp.array(self.numbers)],
            max_actions=settings.max_actions if most is None else jnp.int32(most),
        )


class MixedEnv(PromptedEnv):
    """A `BatchedEnv` of several parts, each of which plays the rows of its tasks.

    No row depends on which other tasks are in the batch. In a step, the host is asked only
    where one of its rows waits.
    """

    def __init__(self, parts: Sequence[Part]):
        """Joins the parts.

        Raises:
            ValueError: their tasks are not numbered from 0, or responses of tasks keep different numbers of actions.
        """
        self.parts = tuple(parts)
        pairs = [pair for part in parts for pair in zip(part.numbers, part.env.tasks)]
        numbered = sorted(pairs, key=lambda pair: pair[0])
        self.tasks = tuple(task for _, task in numbered)
        if [number for number, _ in numbered] != list(range(len(numbered))):
            raise BadValue.of("parts", [part.numbers for part in self.parts], "expected tasks numbered from 0")
        kept = {task.grammar.max_actions for task in self.tasks}
        if len(kept) > 1:
            raise BadValue.of("max_actions", sorted(kept), "expected one number of actions a turn for all tasks")
        self.on_host = any(part.env.on_host for part in self.parts)

    def take_report(self) -> Report:
        """See `PromptedEnv.take_report`."""
        reports = [part.env.take_report() for part in self.parts]
        failures = [failure for report in reports for failure in report.failures]
        return Report(sum(each.calls for each in reports), sum(each.seconds for each in reports), failures)

    def clear(self) -> None:
        """See `PromptedEnv.clear`."""
        for part in self.parts:
            part.env.clear()

    @property
    def info_keys(self) -> tuple[str, ...]:
        """See `PromptedEnv.info_keys`."""
        return tuple(sorted({name for part in self.parts for name in part.env.info_keys}))

    @property
    def env_params(self) -> tuple[Any, ...]:
        """Default parameters of each task; () for one on the host."""
        found: list[Any] = [()] * len(self.tasks)
        for part in self.parts:
            for number, params in zip(part.numbers, part.env.env_params):
                found[number] = params
        return tuple(found)

    def levels(self, task: int) -> int:
        """Number of levels of a task; 0 if they are generated."""
        part = next(part for part in self.parts if task in part.numbers)
        return part.env.levels(part.numbers.index(task))

    def reset(
        self, key: Key[Array, ""], settings: RolloutSettings, ids: EpisodeIds, mask: Bool[Array, " B"] | None = None
    ) -> tuple[tuple[Any, ...], Message]:
        """See `BatchedEnv.reset`."""
        wanted = jnp.ones(ids.task.shape, bool) if mask is None else mask
        states, messages, rows = [], [], []
        for part in self.parts:
            own = part.own(ids.task)
            state, message = part.env.reset(key, part.settings(settings), ids.replace(task=own), wanted & (own >= 0))
            states.append(state)
            messages.append(message)
            rows.append(own >= 0)
        return tuple(states), self._joined(rows, messages)

    def step(
        self,
        settings: RolloutSettings,
        state: tuple[Any, ...],
        response: Response,
        parsed: ParsedResponse,
        mask: Bool[Array, " B"],
        *,
        fresh: bool = False,
    ) -> tuple[tuple[Any, ...], TurnResult, Message]:
        """See `BatchedEnv.step`."""
        states, messages, results, rows_of = [], [], [], [before.task >= 0 for before in state]
        for part, before, own in zip(self.parts, state, rows_of):
            rows = mask & own
            step = functools.partial(
                part.env.step, part.settings(settings), response=response, parsed=parsed, mask=rows, fresh=fresh
            )
            after, found, following = _step_if_any(part.env, step, before, rows) if part.env.on_host else step(before)
            states.append(after)
            messages.append(following)
            results.append(found.replace(info=self.empty_result(len(mask)).info | found.info))
        return tuple(states), _chosen(rows_of, results), self._joined(rows_of, messages)

    def _joined(self, rows: Sequence[Bool[Array, " B"]], messages: Sequence[Message]) -> Message:
        """The message of each row's part."""

        def wide(message: Message) -> Message:
            more = ((0, 0), (0, self.observation_tokens - message.tokens.shape[1]))
            return message.replace(tokens=jnp.pad(message.tokens, more))

        return _chosen(rows, [wide(message) for message in messages])


TaskEnv = CompiledEnv | HostEnv | MixedEnv | RetryEnv
"""The environments of a run's tasks."""


def _step_if_any(
    env: BatchedEnv, step: Callable[[Any], tuple[Any, TurnResult, Message]], state: Any, rows: Bool[Array, " B"]
) -> tuple[Any, TurnResult, Message]:
    """A step of some rows, or none of all where there are none."""
    message = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(step, state)[2])
    nothing = env.empty_result(len(rows)), message
    return jax.lax.cond(jnp.any(rows), step, lambda state: (state, *nothing), state)


def _chosen(rows: Sequence[Bool[Array, " B"]], values: Sequence[Any]) -> Any:
    """Of each row the value of the part that it is of."""
    found = values[0]
    for own, value in zip(rows[1:], values[1:], strict=True):
        found = masked.where(own, value, found)
    return found
